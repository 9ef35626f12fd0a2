/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/agree.h: the questions are declared in walk/model.h; here is what they cost. */
#ifndef WALK_AGREE_H
#define WALK_AGREE_H

#define WALK_OLD_KEYS 8            /* looked at in each step */
#define WALK_QUESTIONS 4           /* mwctl_check, mwctl_range_grants in each step */

#endif
