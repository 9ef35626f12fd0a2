#!/usr/bin/env python3
"""Makes the man pages of include/mwctl.h: man/man3, and man/man7/mwctl.7 from man/mwctl.7.in; and
man/man7/mwctl_compat.7 from include/mwctl_compat.h.

  man.py [--check]      --check: fails if the committed ones differ

The header's comments are the text; nothing about a call is written down twice. A function whose
comment says "the same" or "likewise" shares the page of the one before it, and a struct that one
page alone uses is on that page; each has a page of its name that leads there.
"""

import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAN = ROOT / "man"

# Where a comment does not begin with what would be said in a list.
SUMMARIES = {
    "mwctl_abort": "tell that a prepared chain will not be posted",
    "mwctl_block_give": "give blocks of a region back",
    "mwctl_block_take": "take neighbouring blocks of a region",
    "mwctl_check": "whether a client may touch a range",
    "mwctl_commit_ex": "tell how a prepared chain of the extended interface went",
    "mwctl_context_close": "end the management of a device context",
    "mwctl_context_open": "take a device context under management",
    "mwctl_dereg_mr": "detach a memory region and deregister it",
    "mwctl_detach_pd": "close what the short calls opened for a protection domain",
    "mwctl_detach_qp": "take a queue pair off the books, before it is destroyed",
    "mwctl_domain_close": "end the management of a protection domain",
    "mwctl_domain_open": "take a protection domain under management",
    "mwctl_event_kind": "what an event says",
    "mwctl_kill": "what a deadline may do to a queue pair",
    "mwctl_peer_detach": "take a queue pair off the books, before it is destroyed",
    "mwctl_service_stop": "end the service thread",
    "mwctl_cq_empty": "tell that a completion queue was found empty",
    "mwctl_cq_gone": "tell that a completion queue is about to be destroyed",
    "mwctl_domain_reserve": "have windows ready for the next grants",
    "mwctl_find_rkey": "the open grant that an rkey belongs to",
    "mwctl_grant_info_get": "a grant by its id",
    "mwctl_grant_prepare": "binds and invalidates for the application to post itself",
    "mwctl_commit": "tell how the post of a prepared chain went",
    "mwctl_next_timeout": "the time until mwctl_tick is due",
    "mwctl_peer_gone": "tell that a queue pair no longer exists",
    "mwctl_peer_grants": "the open grants of a client, a domain or a range",
    "mwctl_peer_of": "what a verbs object is attached as",
    "mwctl_peer_stuck": "tell that a send queue is stuck",
    "mwctl_poll_cq": "stand in for ibv_poll_cq",
    "mwctl_put_wr": "put prepared work requests into a batch of the extended interface",
    "mwctl_reg_mr": "register memory that clients reach by keys of windows alone",
    "mwctl_regrant": "end a grant and hand out its successor in one post",
    "mwctl_region_attach": "take the application's memory region under management",
    "mwctl_region_register": "memory with no remote access of its own",
    "mwctl_revoke_qp": "take back all that the client behind a queue pair holds",
    "mwctl_rkey": "a key for one client, in place of mr->rkey",
    "mwctl_size_queues": "what to add to a queue pair's queues before it is created",
    "mwctl_take_async_event": "offer an asynchronous event to the library",
    "mwctl_take_wc": "offer a completion to the library",
    "mwctl_tick": "do what is due",
}

# What a call returns that returns no status.
RETURNS = {
    "mwctl_dereg_mr": "0, or an errno value: EBUSY while a right into the region may be open.",
    "mwctl_event_fd": "The descriptor; \\-1 on an error.",
    "mwctl_next_timeout": "Nanoseconds: 0 at once, \\-1 nothing is planned.",
    "mwctl_poll_cq": "The number of completions in \\fIwc\\fP; 0 only when the queue was seen empty;"
    " negative on an error.",
    "mwctl_reg_mr": "The region; NULL with errno on an error.",
    "mwctl_take_wc": "1: it was the library's. 0: it is the application's."
    " Negative: an error (minus the status), and it is the application's.",
    "mwctl_take_ex": "1: it was the library's. 0: it is the application's."
    " Negative: an error (minus the status), and it is the application's.",
    "mwctl_version": "The version as one number.",
}

VERBS_PAGES = set(
    "ibv_alloc_mw ibv_alloc_pd ibv_create_cq ibv_create_qp ibv_create_qp_ex ibv_get_async_event"
    " ibv_modify_qp ibv_poll_cq ibv_post_send ibv_reg_mr".split()
)
VERBS_SHARED = {
    "ibv_dealloc_mw": "ibv_alloc_mw",
    "ibv_dealloc_pd": "ibv_alloc_pd",
    "ibv_dereg_mr": "ibv_reg_mr",
    "ibv_reg_mr_iova": "ibv_reg_mr",
    "ibv_destroy_cq": "ibv_create_cq",
    "ibv_destroy_qp": "ibv_create_qp",
    "ibv_start_poll": "ibv_create_cq_ex",
}


# ---- the header ----


class Header:
    """The declarations of mwctl.h, in its order. A comment is a list of lines."""

    def __init__(self, text):
        self.functions = {}  # name: (comment, prototype)
        self.structs = {}  # name: (comment, [(comment, field)])
        self.enums = {}  # name: (comment, [(comment, name, value)])
        self.callbacks = {}  # name: (comment, declaration)
        self.opaque = {}  # name: comment
        self.version = ".".join(
            re.search(rf"#define MWCTL_VERSION_{part} (\d+)", text)[1]
            for part in ("MAJOR", "MINOR", "PATCH")
        )
        self.intro = re.search(r"/\*\n \* mwctl\.h:(.*?)\*/", text, re.S)[1]
        lines = iter(text[text.index("#define MWCTL_VERSION \\") :].splitlines())
        comment = []
        for line in lines:
            if line.startswith("//"):
                comment.append(line[2:].strip())
                continue
            # What C++ alone sees says the same again.
            if line.startswith("#ifdef __cplusplus"):
                while not next(lines).startswith("#endif"):
                    pass
                continue
            if match := re.match(r"enum (mwctl_\w+)", line):
                self.enums[match[1]] = (comment, self.body(lines))
            elif match := re.match(r"typedef struct (mwctl_\w+) \{", line):
                fields = [(said, field) for said, field, _ in self.body(lines)]
                self.structs[match[1]] = (comment, fields)
            elif match := re.match(r"typedef struct (mwctl_\w+) \1;", line):
                self.opaque[match[1]] = comment
            elif line.startswith("typedef ") and "(*" in line:
                declaration = self.whole(line, lines)
                self.callbacks[re.search(r"\(\*(\w+)\)", declaration)[1]] = (comment, declaration)
            elif not line.startswith(("#", "static ")) and (
                match := re.match(r"[a-z][\w ]*[ *](mwctl_\w+)\(", line)
            ):
                self.functions[match[1]] = (comment, self.whole(line, lines))
            comment = []

    @staticmethod
    def whole(line, lines):
        while not line.rstrip().endswith(";"):
            line += " " + next(lines).strip()
        return re.sub(r"\s+", " ", line).strip()

    @staticmethod
    def body(lines):
        """The members up to the closing brace: (comment, name or declaration, value)."""
        members, comment = [], []
        for line in lines:
            line = line.strip()
            if line.startswith("}"):
                return members
            if line.startswith("//"):
                comment.append(line[2:].strip())
            elif line and not line.startswith(("#", ":", "{")):
                while not line.endswith((";", ",")):
                    line += " " + next(lines).strip()
                name, _, value = line.rstrip(";,").partition(" = ")
                members.append((comment, name, value))
                comment = []
        raise SystemExit("man.py: a brace of mwctl.h does not close")


# ---- words into roff ----


def escaped(text):
    text = text.replace("\\", "\\e").replace("^", "\\(ha").replace("~", "\\(ti")
    text = re.sub(r"(?<![\w])-(?=\d)", r"\\-", text)
    return "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)


class Roff:
    """Marks what the header's comments name."""

    def __init__(self, header):
        self.header = header
        self.pages = {}  # name: the page that describes it
        self.constants = {"MWCTL_STATUS_OK"}
        for prefix, name in (
            ("MWCTL_STATUS_", "mwctl_status"),
            ("MWCTL_PROOF_", "mwctl_proof"),
            ("MWCTL_EVENT_KIND_", "mwctl_event_kind"),
            ("MWCTL_POLLING_", "mwctl_polling"),
            ("MWCTL_KILL_", "mwctl_kill"),
        ):
            for _, variant, _ in header.enums.get(name, ((), []))[1]:
                self.constants.add(variant.removeprefix(prefix))
        self.constants -= {"NONE"}

    def mark(self, text, own=(), arguments=()):
        def name(match):
            word, field = match[1], match[2] or ""
            page = self.pages.get(word)
            if field:
                return f"\\fB{word}{field}\\fP"
            if page is None or word in own:
                return f"\\fB{word}\\fP"
            return f"\\fB{word}\\fP({page_section(page)})"

        text = escaped(text)
        text = re.sub(r"`([^`]*)`|\*([a-z]+ [a-z]+)\*", r"\\fI\1\2\\fP", text)
        text = re.sub(r"(?<![\w\\])(\*[a-z]\w*)(?![\w*])", r"\\fI\1\\fP", text)
        text = re.sub(r"(?<![\w\\*])(mwctl_\w*[a-z0-9])(\.[a-z_]+)?", name, text)
        text = re.sub(r"(?<![\w\\])(ibv_\w+(?:\.\w+)?)", r"\\fB\1\\fP", text)
        text = re.sub(r"(?<![\w\\*])((?:IBV|MWCTL)_[A-Z_0-9]+\b\*?)", r"\\fB\1\\fP", text)
        for word in sorted(set(arguments), key=len, reverse=True):
            if "_" in word:
                text = re.sub(rf"(?<![\w\\*]){word}(?!\w)", rf"\\fI{word}\\fP", text)
        return re.sub(
            r"(?<![\w\\])([A-Z][A-Z_0-9]+)(?!\w)",
            lambda match: f"\\fB{match[1]}\\fP" if match[1] in self.constants else match[1],
            text,
        )

    def lines(self, comment, own=(), arguments=()):
        """A sentence a line; a blank line of the comment is a new paragraph."""
        out = []
        for paragraph in "\n".join(comment).split("\n\n"):
            text = self.mark(" ".join(paragraph.split()), own, arguments)
            if out:
                out.append(".PP")
            for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Z0-9\\`*])", text):
                out.append("\\&" + sentence if sentence[:1] in ".'" else sentence)
        return out


def page_section(page):
    return "7" if page == "mwctl" else "3"


def member(field):
    """A field's type and name; all of it is the type where it is more than that."""
    match = re.fullmatch(r"(.*[ *])(\w+(?:\[\w*\])?)", field)
    return (match[1], match[2]) if match else (field, "")


def title(header, name, section):
    return [
        '.\\" SPDX-License-Identifier: MIT OR Apache-2.0',
        '.\\" Made by scripts/man.py from include/mwctl.h.',
        f'.TH {name} {section} "" "libmwctl {header.version}" "RDMA memory windows"',
        ".nh",  # A name must not be broken.
        ".ad l",
    ]


def declaration(text, indent=8):
    """A C declaration in bold, what it names in italics, one parameter a line if it is long."""
    at = text.index(")(") + 1 if "(*" in text else text.index("(")
    head, rest = text[:at], text[at + 1 :]
    parameters = [p.strip() for p in rest.removesuffix(");").split(",")]
    one_line = len(text) < 72
    pieces = []
    for i, parameter in enumerate(parameters):
        kind, word = member(parameter)
        ending = ");" if i == len(parameters) - 1 else ", " if one_line else ","
        pieces.append(f'{kind}" "{word}" "{ending}')
    if one_line:
        return [f'.BI "{head}(' + "".join(pieces) + '"']
    return [f'.BI "{head}("'] + [f'.BI "{" " * indent}{piece}"' for piece in pieces]


# ---- the pages ----


class Pages:
    def __init__(self, header, template):
        self.header = header
        self.roff = Roff(header)
        self.files = {}
        self.groups = []  # lists of functions, the first one names the page
        self.place()
        for group in self.groups:
            self.call_page(group)
        for name in self.own_types:
            self.type_page(name)
        self.overview(template)

    def place(self):
        """Decides which page describes what."""
        header, pages = self.header, self.roff.pages
        for name, (comment, _) in header.functions.items():
            words = r"^The same\b|\blikewise\b|\bas above\b"
            if self.groups and re.search(words, " ".join(comment)):
                self.groups[-1].append(name)
            else:
                self.groups.append([name])
            pages[name] = self.groups[-1][0]
        self.objects = dict(header.opaque)
        for name, (comment, fields) in header.structs.items():
            if [field for _, field in fields] == ["uint64_t id"]:
                self.objects[name] = comment
        for name in self.objects:
            pages[name] = "mwctl"
        self.own_types = [*header.enums, *header.callbacks]
        self.said = {
            name: " ".join(said)
            for name, (said, _) in [*header.functions.items(), *header.callbacks.items()]
        }
        for name, (said, members) in [*header.structs.items(), *header.enums.items()]:
            self.said[name] = " ".join([*said, *(line for member in members for line in member[0])])
        self.users = {name: self.users_of(name) for name in [*header.structs, *self.own_types]}
        self.types_of = {group[0]: [] for group in self.groups}
        for name in header.structs:
            if name in self.objects:
                continue
            users = self.users[name]
            if len(users) == 1 and users[0] in self.types_of:
                self.types_of[users[0]].append(name)
                pages[name] = users[0]
            else:
                self.own_types.append(name)
        for name in self.own_types:
            pages[name] = name

    def users_of(self, name):
        """The pages whose calls, and the types whose members, mention a type."""
        header = self.header
        word = re.compile(rf"\b{name}\b")
        users = []
        for group in self.groups:
            if any(word.search(header.functions[f][1].split("(", 1)[1]) for f in group):
                users.append(group[0])
        for other, (_, fields) in header.structs.items():
            if any(word.search(field) for _, field in fields):
                users.append(other)
        for other, (_, text) in header.callbacks.items():
            if other != name and word.search(text):
                users.append(other)
        return users

    def summary(self, name):
        if name in SUMMARIES:
            return SUMMARIES[name]
        header = self.header
        for known in (header.functions, header.structs, header.enums, header.callbacks):
            if name in known:
                comment = known[name][0]
        text = " ".join(comment)
        text = re.split(r"(?:[.:;?]\s|[.:;?]$)", text)[0]
        if len(text) > 64:
            text = re.split(r", | \(", text)[0]
        text = text.replace("`", "")
        if not text:
            return "see mwctl(7)"
        if re.match(r"[A-Z][a-z]|A ", text):
            text = text[0].lower() + text[1:]
        # "takes": the house of verbs says "take".
        verb = re.match(r"(takes|hands|gives|ends|moves|maps|starts|says|does|offers|revokes|has) ", text)
        if verb:
            verb = verb[1]
            stem = {"does": "do", "has": "have"}.get(verb, verb[:-1])
            text = stem + text[len(verb) :]
        return text

    def name_section(self, names, summary):
        return [".SH NAME", ", ".join(names) + " \\- " + escaped(summary)]

    def fields(self, name, own):
        out = []
        for comment, field in self.header.structs[name][1]:
            kind, word = member(field)
            if word.startswith("reserved") and not comment:
                comment = ["Must be 0."] if "options" in name or "request" in name else ["0."]
            out += [".TP", f'.BI "{kind}" "{word}"']
            out += self.roff.lines(comment, own) if comment else ["\\&"]
        return out

    def variants(self, name):
        out = []
        for comment, variant, value in self.header.enums[name][1]:
            out += [".TP", f".BR {variant} \" ({value})\"", *self.roff.lines(comment, (name,))]
        return out

    def see_also(self, names, text, also=()):
        """Pages of what the text names, after mwctl(7)."""
        pages = self.roff.pages
        found = [*also, *re.findall(r"\bmwctl_\w*[a-z0-9]\b", text)]
        # What speaks of these, too.
        own = re.compile(rf"\b({'|'.join(names)})\b")
        found += [name for name, said in self.said.items() if own.search(said)]
        noun = "_".join(names[0].split("_")[:2])
        found += [f for f in self.header.functions if f == noun or f.startswith(noun + "_")]
        ours, verbs = [], []
        for word in found:
            page = pages.get(word)
            if page and page not in ("mwctl", pages.get(names[0])) and page not in ours:
                ours.append(page)
        for word in re.findall(r"\bibv_\w+", text):
            page = VERBS_SHARED.get(word, word)
            if page in VERBS_PAGES and page not in verbs:
                verbs.append(page)
        entries = ["mwctl (7)"] + [f"{page} (3)" for page in [*ours, *verbs]]
        return [".SH SEE ALSO"] + [f".BR {entry}," for entry in entries[:-1]] + [f".BR {entries[-1]}"]

    def returns(self, group):
        header, roff = self.header, self.roff
        out = []
        statuses = {
            name.removeprefix("MWCTL_STATUS_"): (name, comment)
            for comment, name, _ in header.enums["mwctl_status"][1]
        }
        of_status = [n for n in group if header.functions[n][1].startswith("mwctl_status ")]
        for name in group:
            if name in of_status:
                continue
            if len(group) > 1:
                out += [".PP", f".BR {name} ():"]
            prototype = header.functions[name][1]
            known = "The value that is described above."
            if prototype.startswith("void mwctl"):
                known = "None."
            elif prototype.startswith("const char *"):
                known = "The sentence, never NULL. It must not be freed."
            out.append(RETURNS.get(name, known))
        if not of_status:
            return out
        if len(of_status) == len(group) and len(group) > 1:
            which = "Each call returns"
        elif len(group) == 1:
            which = f"\\fB{group[0]}\\fP() returns"
        else:
            which = "The others return"
        named = []
        prototypes = " ".join(header.functions[n][1] for n in of_status)
        text = " ".join(" ".join(header.functions[n][0]) for n in of_status)
        # A request says itself how it is refused; a step has one.
        given = re.findall(r"const struct (mwctl_\w+)", prototypes)
        for name in given:
            comment, fields = header.structs.get(name, ((), ()))
            text += " " + " ".join(comment)
            given += re.findall(r"struct (mwctl_\w+)", " ".join(field for _, field in fields))
        for word in re.findall(r"\b[A-Z][A-Z_0-9]+\b", text):
            if word in statuses and word not in ("OK", *named):
                named.append(word)
        ids = "|".join(name for name in self.objects if name not in header.opaque)
        takes_id = re.search(rf"uint64_t (grant|\*grants, size_t n)\b|struct ({ids}) \w+[,)]", prototypes)
        if takes_id and "STALE_ID" not in named:
            named.append("STALE_ID")
        if re.search(r"\*opts, size_t size", prototypes):
            named.append("OPTIONS_SIZE")
        if "mwctl_context *ctx," in prototypes or "mwctl_context *ctx)" in prototypes:
            named += [word for word in ("INVALID_ARGUMENT", "FORKED", "POISONED") if word not in named]
        out += [
            ".PP",
            f"{which} \\fBMWCTL_STATUS_OK\\fP (0) on success,",
            "otherwise one of the values in",
            '.BR mwctl_status "(3), among them"' if named else ".BR mwctl_status (3).",
        ]
        for word in named:
            constant, comment = statuses[word]
            out += [".TP", f".B {constant}", *roff.lines(comment)]
        return out[1:] if out[0] == ".PP" else out

    def call_page(self, group):
        header, roff = self.header, self.roff
        first = group[0]
        types = self.types_of[first]
        out = title(header, first, 3) + self.name_section(group, self.summary(first))
        out += [".SH SYNOPSIS", ".nf", ".B #include <mwctl.h>"]
        for name in group:
            out += [".PP", *declaration(header.functions[name][1])]
        out += [".fi", ".SH DESCRIPTION"]
        notes, waiting, mentioned = [], [], []
        for i, name in enumerate(group):
            comment, prototype = header.functions[name]
            mentioned += comment + [prototype.split("(", 1)[1]]
            arguments = re.findall(r"(\w+)[,)]", prototype)
            body, verbs, wait = split(comment)
            if len(group) > 1:
                out.append(f".SS {name}")
            out += roff.lines(body, group, arguments)
            if verbs:
                notes += ([".PP"] if notes else []) + roff.lines(verbs, group, arguments)
            waiting.append((name, wait))
        for name in types:
            comment, fields = header.structs[name]
            mentioned += comment + [line for said, field in fields for line in [*said, field]]
            out += [f".SS struct {name}", *roff.lines(comment, [*group, name]), *self.fields(name, group)]
        out += [".SH RETURN VALUE", *self.returns(group)]
        out += [".SH THREADS AND WAITING", *self.threads(waiting)]
        if notes:
            out += [".SH NOTES", *notes]
        out += self.see_also(group, "\n".join(mentioned))
        self.write(first, out)
        for name in [*group[1:], *types]:
            self.link(name, first)

    def threads(self, waiting):
        out = []
        for name, wait in waiting:
            wait = " ".join(wait)
            if not wait:
                raise SystemExit(f"man.py: the header does not say of {name} whether it waits")
            first, *others = self.roff.lines([wait[0].lower() + wait[1:]])
            subject = f"\\fB{name}\\fP" if len(waiting) > 1 else "The call"
            out += [f"{subject} {first}", *others]
        comments = " ".join(" ".join(self.header.functions[name][0]) for name, _ in waiting)
        if not re.search(r"No other call on the context|on the thread that", comments):
            out.append("Any thread may call at any time.")
        return out

    def type_page(self, name):
        header, roff = self.header, self.roff
        out = title(header, name, 3) + self.name_section([name], self.summary(name))
        out += [".SH SYNOPSIS", ".nf", ".B #include <mwctl.h>", ".PP"]
        if name in header.enums:
            comment = header.enums[name][0]
            out += [f'.B "enum {name} {{ ... }};"', f'.B "typedef int32_t {name};"']
            body = self.variants(name)
            mentioned = list(comment)
        elif name in header.callbacks:
            comment, text = header.callbacks[name]
            out += declaration(text)
            body = []
            mentioned = comment + [text]
        else:
            comment, fields = header.structs[name]
            out += [f'.B "typedef struct {name} {{"']
            for _, field in fields:
                kind, word = member(field)
                out.append(f'.BI "    {kind}" "{word}" ;')
            out += [f'.B "}} {name};"']
            body = self.fields(name, [name])
            mentioned = comment + [line for said, field in fields for line in [*said, field]]
        arguments = re.findall(r"(\w+)[,)]", header.callbacks[name][1]) if name in header.callbacks else ()
        out += [".fi", ".SH DESCRIPTION"]
        said = roff.lines(comment, [name], arguments) if "".join(comment) else []
        out += (said or [sentence(self.summary(name))]) + body
        out += self.see_also([name], "\n".join(mentioned), self.users[name])
        self.write(name, out)

    def overview(self, template):
        header, roff = self.header, self.roff
        intro = "\n".join(line[3:] for line in header.intro.splitlines())
        # A list and its heading: the paragraph before it.
        lists, heading = {}, ""
        for block in re.split(r"\n\n+", intro.strip("\n")):
            if block.startswith("  "):
                lists[heading] = [
                    (name, said.split("\n"))
                    for name, said in re.findall(r"^  (\S.*?) {2,}(\S.*(?:\n {4,}.*)*)", block, re.M)
                ]
            else:
                heading = " ".join(block.split())
        try:
            dozen, short, posting, rules = lists.values()
            after = re.search(r"\n\n(A loop need not .*?)\n\n", intro, re.S)[1]
        except (ValueError, TypeError):
            raise SystemExit("man.py: the introduction of mwctl.h was not understood") from None
        proof = re.search(r"What a proof says: (.*)", intro, re.S)[1].split()

        def tagged(entries):
            out = []
            for name, said in entries:
                tag = f".BR {name} (3)" if name in header.functions else f".B {escaped(name)}"
                out += [".TP", tag, *roff.lines([line.strip() for line in said])]
            return out

        parts = {
            "DOZEN": tagged(dozen),
            "SHORT": tagged(short),
            "POSTING": [*tagged(posting), ".PP", *roff.lines([after])],
            "RULES": tagged(rules),
            "PROOF": roff.lines([sentence(" ".join(proof))]),
            "PROOFS": self.variants("mwctl_proof"),
            "OBJECTS": sum(
                ([".TP", f".B {n}", *roff.lines(said)] for n, said in self.objects.items()), []
            ),
            "CALLS": self.listed(self.groups),
            "TYPES": self.listed([name] for name in sorted(self.own_types)),
        }
        out = title(header, "mwctl", 7)
        out[1] = '.\\" Made by scripts/man.py from man/mwctl.7.in and include/mwctl.h.'
        for line in template.splitlines():
            if match := re.fullmatch(r"@(\w+)@", line):
                out += parts.pop(match[1])
            elif not line.startswith('.\\"'):
                out.append(line)
        if parts:
            raise SystemExit(f"man.py: man/mwctl.7.in has no place for {', '.join(parts)}")
        self.files["man7/mwctl.7"] = "\n".join(out) + "\n"
        for name in self.objects:
            self.files[f"man3/{name}.3"] = ".so man7/mwctl.7\n"

    def listed(self, groups):
        """Each group's names and what they are for."""
        out = []
        for group in groups:
            out += [".TP", ", ".join(f"\\fB{name}\\fP(3)" for name in group)]
            out += self.roff.lines([sentence(self.summary(group[0]))])
        return out

    def write(self, name, lines):
        self.files[f"man3/{name}.3"] = "\n".join(lines) + "\n"

    def link(self, name, page):
        self.files[f"man3/{name}.3"] = f".so man3/{page}.3\n"


def split(comment):
    """A function's comment in its description, the verbs rule behind it, and whether it waits."""
    body, verbs, wait = [], [], []
    into = body
    for line in comment:
        if match := re.search(r"(?:^|(?<=\. ))(?:Never waits|May wait)\b", line):
            if match.start():
                into.append(line[: match.start()].strip())
            into, line = wait, line[match.start() :]
        elif line.startswith("Verbs: "):
            into, line = verbs, line[7].upper() + line[8:]
        into.append(line)
    return body, verbs, wait


def compat_page(header, text, roff):
    """The overview of mwctl_compat.h: its first comment, and the calls that have one of their own."""
    comments = [
        ("\n".join(line.strip().removeprefix("*").removeprefix(" ") for line in comment.splitlines()), after)
        for comment, after in re.findall(r"/\*(.*?)\*/\n(?=([^\n]*))", text, re.S)
    ]
    overview = comments[1][0].strip().removeprefix("mwctl_compat.h: ")
    out = title(header, "mwctl_compat", 7)
    out[1] = '.\\" Made by scripts/man.py from include/mwctl_compat.h.'
    out += [".SH NAME", "mwctl_compat \\- windows of Type 2 for programs written for Type 1"]
    out += [".SH SYNOPSIS", ".B #include <mwctl_compat.h>", ".SH DESCRIPTION"]
    for paragraph in overview.split("\n\n"):
        entries = re.split(r"^  (?=\S)", paragraph, flags=re.M)
        if len(entries) == 1:
            heading = not paragraph.endswith((".", ":"))
            out += [f".SS {paragraph}"] if heading else [".PP", *roff.lines([sentence(paragraph)])]
            continue
        for entry in filter(str.strip, entries):
            name, about = re.split(r"  +", entry, maxsplit=1)
            out += [".TP", f".B {escaped(name)}", *roff.lines([about])]
    out += [".SS Calls of its own"]
    for comment, declared in comments[2:]:
        if declared.endswith(";") and "macros below" not in comment:
            out += [".TP", f".B {escaped(declared)}", *roff.lines([comment.strip()])]
    return "\n".join([*out, ".SH SEE ALSO", ".BR mwctl (7),", ".BR ibv_bind_mw (3)"]) + "\n"


def sentence(text):
    return text[0].upper() + text[1:] + ("" if text.endswith((".", ":")) else ".") if text else text


def main():
    header = Header((ROOT / "include/mwctl.h").read_text())
    known = header.functions.keys() | header.structs.keys() | header.enums.keys()
    stale = (SUMMARIES.keys() | RETURNS.keys()) - known
    if stale:
        raise SystemExit(f"man.py: mwctl.h has no {', '.join(sorted(stale))}")
    pages = Pages(header, (MAN / "mwctl.7.in").read_text())
    compat = (ROOT / "include/mwctl_compat.h").read_text()
    files = pages.files | {"man7/mwctl_compat.7": compat_page(header, compat, pages.roff)}
    there = {str(p.relative_to(MAN)): p.read_text() for p in MAN.glob("man?/*")}
    if "--check" in sys.argv[1:]:
        for name in sorted(files.keys() | there.keys()):
            old, new = there.get(name, ""), files.get(name, "")
            sys.stderr.writelines(
                difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"man/{name}", "made anew")
            )
        if files != there:
            raise SystemExit("man/ is out of date: run scripts/header.sh")
        return
    for name in there.keys() - files.keys():
        (MAN / name).unlink()
    for name, text in files.items():
        (MAN / name).parent.mkdir(parents=True, exist_ok=True)
        if there.get(name) != text:
            (MAN / name).write_text(text)


main()
