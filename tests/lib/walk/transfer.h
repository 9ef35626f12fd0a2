/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* walk/transfer.h: rights that go from one client to another, or on to other memory of the same. */
#ifndef WALK_TRANSFER_H
#define WALK_TRANSFER_H

/* Some moves in one call, waiting or not, now and then with one that is bad among them. */
void walk_transfer(void);

#endif
