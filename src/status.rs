//! Outcomes: every number is written out, never reused, and has a text.

/// What a call returns, and how a single grant or revocation ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// Not ended yet.
    Pending = 1,

    /// An argument is NULL, or a combination of arguments makes no sense.
    InvalidArgument = 10,
    /// An option struct has a size that this version does not know, or a non-zero tail.
    OptionsSize = 11,
    /// A flag is set that this version does not know.
    UnknownFlags = 12,
    /// The range has length 0.
    LengthZero = 13,
    /// The range is longer than one bind can cover (2 GiB).
    LengthTooLong = 14,
    /// The range is not inside the region, or it wraps around.
    OutOfRange = 15,
    /// The object belongs to another protection domain.
    ForeignPd = 16,
    /// The object belongs to another device context.
    ForeignContext = 17,
    /// The id names nothing that lives: it was never issued, or what it named has ended.
    StaleId = 18,
    /// The device does not carry this right through a window.
    AccessUnsupported = 19,
    /// The region's declared access flags do not allow this right.
    AccessMissingOnRegion = 20,
    /// The queue pair's access flags do not allow this right.
    AccessMissingOnQp = 21,
    /// A grant must carry at least one remote right.
    AccessNone = 22,
    /// The queue pair is not of type RC.
    NotRc = 23,
    /// The queue pair is not in RTS.
    NotConnected = 24,
    /// The queue pair's state does not allow this.
    QpState = 25,
    /// The budget exceeds what the queue pair was created with.
    BudgetTooLarge = 26,
    /// An extended queue pair must declare its send_ops_flags.
    QpUndeclared = 27,
    /// The queue pair was created without BIND_MW and LOCAL_INV.
    QpWithoutWindowOps = 28,
    /// Already attached.
    AlreadyAttached = 29,
    /// The completion queue is in use with the other polling mode.
    PollingMode = 30,
    /// The memory region has remote access flags: its own rkey stays open whatever is revoked.
    ParentOpen = 31,
    /// The memory region was not registered with MW_BIND.
    ParentNotBindable = 32,
    /// This kind of memory (zero-based or on-demand) is not supported.
    MemoryKind = 33,
    /// The grants of one prepared chain must belong to one peer.
    MixedPeers = 34,
    /// An id is named twice in one call.
    Duplicate = 35,
    /// The range is not made of whole blocks that were taken.
    BlockNotTaken = 36,
    /// The verbs object is not under management.
    NotAttached = 37,

    /// The device does not support Type 2 memory windows.
    Unsupported = 40,
    /// Out of memory.
    NoMemory = 41,
    /// The device allocates no more memory windows.
    DeviceLimit = 42,
    /// Every window's next key was used too recently and the device allocates no more windows.
    KeysExhausted = 43,
    /// No run of free blocks is long enough.
    NoBlocks = 44,
    /// No window is ready now; a tick or a waiting call refills the pool.
    PoolEmpty = 45,
    /// The send-queue budget is in use now; try again after a completion.
    QueueFull = 46,
    /// More items than one chain or one table can hold.
    TooMany = 47,

    /// Something that was opened under this object is still open.
    Busy = 60,
    /// A revocation of this grant is under way already.
    InProgress = 61,
    /// A waiting call on the thread that is declared to poll could never end.
    WouldDeadlock = 62,
    /// The queue pair is in an error state.
    PeerDead = 63,
    /// The peer is being detached.
    PeerLeaving = 64,
    /// No open grant answers to this.
    NoGrant = 65,
    /// No peer uses this completion queue.
    UnknownQueue = 67,
    /// A right to part of the range was not proved gone: revoke that grant again.
    RangeUncertain = 68,
    /// The queue pair or its completion queue belongs to another thread.
    WrongThread = 66,

    /// The deadline passed; what the result's id names, if any, is open and must be revoked.
    TimedOut = 80,
    /// Not proved: the right may still be usable.
    Open = 81,
    /// The bind completed with an error.
    BindFailed = 82,
    /// The post failed.
    PostFailed = 83,
    /// The work request was not posted.
    NotPosted = 84,
    /// A verbs call failed.
    VerbsError = 85,

    /// A forked child must not use the library.
    Forked = 90,
    /// An internal error was caught; the context gives no more proofs.
    Poisoned = 91,
}

/// What shows that a right is gone.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// No proof.
    None = 0,
    /// The LOCAL_INV completed.
    Invalidated = 1,
    /// The window was deallocated.
    Deallocated = 2,
    /// The queue pair was in ERR and the window was deallocated.
    QpFenced = 3,
    /// A SEND_WITH_INV for the key was received.
    PeerInvalidated = 4,
    /// The bind was never posted.
    NeverBound = 5,
}

/// A text for each number of an enumeration. The match has no wildcard: a number without a text
/// does not compile.
macro_rules! texts {
    ($name:ident { $($variant:ident: $text:literal,)* }) => {
        impl $name {
            const ALL: &'static [$name] = &[$($name::$variant,)*];

            pub fn text(self) -> &'static std::ffi::CStr {
                match self {
                    $($name::$variant => $text,)*
                }
            }

            /// The text for a number; `None` for one that is not in use.
            pub fn text_of(number: i32) -> Option<&'static std::ffi::CStr> {
                Self::ALL.iter().find(|value| **value as i32 == number).map(|value| value.text())
            }
        }
    };
}

texts!(Status {
    Ok: c"success",
    Pending: c"not ended yet",
    InvalidArgument: c"an argument is NULL, or a combination of arguments makes no sense",
    OptionsSize: c"an option struct has a size that this version does not know, or a non-zero tail",
    UnknownFlags: c"a flag is set that this version does not know",
    LengthZero: c"the range has length 0",
    LengthTooLong: c"the range is longer than one bind can cover (2 GiB)",
    OutOfRange: c"the range is not inside the region, or it wraps around",
    ForeignPd: c"the object belongs to another protection domain",
    ForeignContext: c"the object belongs to another device context",
    StaleId: c"the id names nothing that lives: it was never issued, or what it named has ended",
    AccessUnsupported: c"the device does not carry this right through a window",
    AccessMissingOnRegion: c"the region's declared access flags do not allow this right",
    AccessMissingOnQp: c"the queue pair's access flags do not allow this right",
    AccessNone: c"a grant must carry at least one remote right",
    NotRc: c"the queue pair is not of type RC",
    NotConnected: c"the queue pair is not in RTS",
    QpState: c"the queue pair's state does not allow this",
    BudgetTooLarge: c"the budget exceeds what the queue pair was created with",
    QpUndeclared: c"an extended queue pair must declare its send_ops_flags",
    QpWithoutWindowOps: c"the queue pair was created without BIND_MW and LOCAL_INV",
    AlreadyAttached: c"already attached",
    PollingMode: c"the completion queue is in use with the other polling mode",
    ParentOpen: c"the memory region has remote access flags: its own rkey stays open whatever is revoked",
    ParentNotBindable: c"the memory region was not registered with MW_BIND",
    MemoryKind: c"this kind of memory (zero-based or on-demand) is not supported",
    MixedPeers: c"the grants of one prepared chain must belong to one peer",
    Duplicate: c"an id is named twice in one call",
    BlockNotTaken: c"the range is not made of whole blocks that were taken",
    NotAttached: c"the verbs object is not under management",
    Unsupported: c"the device does not support Type 2 memory windows",
    NoMemory: c"out of memory",
    DeviceLimit: c"the device allocates no more memory windows",
    KeysExhausted: c"every window's next key was used too recently and the device allocates no more windows",
    NoBlocks: c"no run of free blocks is long enough",
    PoolEmpty: c"no window is ready now; a tick or a waiting call refills the pool",
    QueueFull: c"the send-queue budget is in use now; try again after a completion",
    TooMany: c"more items than one chain or one table can hold",
    Busy: c"something that was opened under this object is still open",
    InProgress: c"a revocation of this grant is under way already",
    WouldDeadlock: c"a waiting call on the thread that is declared to poll could never end",
    PeerDead: c"the queue pair is in an error state",
    PeerLeaving: c"the peer is being detached",
    UnknownQueue: c"no peer uses this completion queue",
    RangeUncertain: c"a right to part of the range was not proved gone: revoke that grant again",
    WrongThread: c"the queue pair or its completion queue belongs to another thread",
    NoGrant: c"no open grant answers to this",
    TimedOut: c"the deadline passed; what the result's id names, if any, is open and must be revoked",
    Open: c"not proved: the right may still be usable",
    BindFailed: c"the bind completed with an error",
    PostFailed: c"the post failed",
    NotPosted: c"the work request was not posted",
    VerbsError: c"a verbs call failed",
    Forked: c"a forked child must not use the library",
    Poisoned: c"an internal error was caught; the context gives no more proofs",
});

texts!(Proof {
    None: c"no proof",
    Invalidated: c"the LOCAL_INV completed",
    Deallocated: c"the window was deallocated",
    QpFenced: c"the queue pair was in ERR and the window was deallocated",
    PeerInvalidated: c"a SEND_WITH_INV for the key was received",
    NeverBound: c"the bind was never posted",
});

pub type Result<T> = std::result::Result<T, Status>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_text_and_only_those() {
        assert_eq!(Status::text_of(0), Some(Status::Ok.text()));
        assert_eq!(Status::text_of(Status::Open as i32), Some(Status::Open.text()));
        assert_eq!(Status::text_of(9999), None);
        assert_eq!(Proof::text_of(-1), None);
    }
}
