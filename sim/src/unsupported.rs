//! The calls of libibverbs that this device does not do.
//!
//! All of libibverbs' symbols exist, so that any program built for it loads here; those listed
//! below answer "not supported" in the way of their return type, and are counted. Their arguments
//! are never looked at, so none is declared: in C's calling conventions the caller disposes of
//! them.

use crate::counters::unsupported;
use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;

fn set_errno(value: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = value }
}

/// One symbol that answers with `$errno`:
/// `errno` returns the value, `minus_one` returns −1 and sets errno, `null` returns NULL and sets
/// errno, `zero` returns 0, `nothing` returns nothing.
macro_rules! answer {
    (errno $errno:ident $name:ident) => {
        #[no_mangle]
        pub extern "C" fn $name() -> c_int {
            unsupported(stringify!($name));
            libc::$errno
        }
    };
    (minus_one $errno:ident $name:ident) => {
        #[no_mangle]
        pub extern "C" fn $name() -> c_int {
            unsupported(stringify!($name));
            set_errno(libc::$errno);
            -1
        }
    };
    (null $errno:ident $name:ident) => {
        #[no_mangle]
        pub extern "C" fn $name() -> *mut c_void {
            unsupported(stringify!($name));
            set_errno(libc::$errno);
            null_mut()
        }
    };
    (zero $errno:ident $name:ident) => {
        #[no_mangle]
        pub extern "C" fn $name() -> c_uint {
            unsupported(stringify!($name));
            set_errno(libc::$errno);
            0
        }
    };
    (nothing $errno:ident $name:ident) => {
        #[no_mangle]
        pub extern "C" fn $name() {
            unsupported(stringify!($name));
        }
    };
}

macro_rules! answers {
    ($($kind:ident $errno:ident { $($name:ident)* })*) => {
        $($( answer!($kind $errno $name); )*)*
    };
}

// Calls of applications.
answers! {
    errno EOPNOTSUPP {
        ibv_attach_mcast
        ibv_destroy_ah
        ibv_detach_mcast
        ibv_query_ece
        ibv_resolve_eth_l2_from_gid
        ibv_set_ece
    }
    // The −1 of ibv_rereg_mr says that the old registration is still valid.
    minus_one EOPNOTSUPP {
        ibv_init_ah_from_wc
        ibv_rereg_mr
    }
    null EOPNOTSUPP {
        ibv_create_ah
        ibv_create_ah_from_wc
        ibv_import_device
        ibv_import_dm
        ibv_import_mr
        ibv_import_pd
        ibv_reg_dmabuf_mr
    }
    nothing EOPNOTSUPP {
        ibv_unimport_dm
        ibv_unimport_mr
        ibv_unimport_pd
    }
}

// Calls of providers, the drivers that libibverbs loads. This device is its own provider.
answers! {
    errno ENOSYS {
        execute_ioctl
        ibv_cmd_advise_mr
        ibv_cmd_alloc_dm
        ibv_cmd_alloc_mw
        ibv_cmd_alloc_pd
        ibv_cmd_attach_mcast
        ibv_cmd_close_xrcd
        ibv_cmd_create_ah
        ibv_cmd_create_counters
        ibv_cmd_create_cq
        ibv_cmd_create_cq_ex
        ibv_cmd_create_flow
        ibv_cmd_create_flow_action_esp
        ibv_cmd_create_qp
        ibv_cmd_create_qp_ex
        ibv_cmd_create_qp_ex2
        ibv_cmd_create_rwq_ind_table
        ibv_cmd_create_srq
        ibv_cmd_create_srq_ex
        ibv_cmd_create_wq
        ibv_cmd_dealloc_mw
        ibv_cmd_dealloc_pd
        ibv_cmd_dereg_mr
        ibv_cmd_destroy_ah
        ibv_cmd_destroy_counters
        ibv_cmd_destroy_cq
        ibv_cmd_destroy_flow
        ibv_cmd_destroy_flow_action
        ibv_cmd_destroy_qp
        ibv_cmd_destroy_rwq_ind_table
        ibv_cmd_destroy_srq
        ibv_cmd_destroy_wq
        ibv_cmd_detach_mcast
        ibv_cmd_free_dm
        ibv_cmd_get_context
        ibv_cmd_modify_cq
        ibv_cmd_modify_flow_action_esp
        ibv_cmd_modify_qp
        ibv_cmd_modify_qp_ex
        ibv_cmd_modify_srq
        ibv_cmd_modify_wq
        ibv_cmd_open_qp
        ibv_cmd_open_xrcd
        ibv_cmd_post_recv
        ibv_cmd_post_send
        ibv_cmd_post_srq_recv
        ibv_cmd_query_context
        ibv_cmd_query_device_any
        ibv_cmd_query_mr
        ibv_cmd_query_port
        ibv_cmd_query_qp
        ibv_cmd_query_srq
        ibv_cmd_read_counters
        ibv_cmd_reg_dm_mr
        ibv_cmd_reg_dmabuf_mr
        ibv_cmd_reg_mr
        ibv_cmd_req_notify_cq
        ibv_cmd_rereg_mr
        ibv_cmd_resize_cq
    }
    minus_one ENOSYS {
        ibv_cmd_poll_cq
    }
    null ENOSYS {
        _verbs_init_and_alloc_context
        verbs_open_device
    }
    zero ENOSYS {
        __ioctl_final_num_attrs
    }
    nothing ENOSYS {
        __verbs_log
        verbs_init_cq
        verbs_register_driver_34
        verbs_set_ops
        verbs_uninit_context
    }
}

/// What providers read to learn whether a destroy may ignore a vanished device. Nobody does here.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

// ---- older versions of symbols, bound by abi/versions.c ----

/// Counts a call of a symbol's older version, whose structures are not today's.
fn old(name: *const c_char) {
    // SAFETY: abi/versions.c passes string literals, which live as long as the library.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    unsupported(name.to_str().unwrap_or("an older version"));
    set_errno(libc::ENOSYS);
}

#[no_mangle]
extern "C" fn libibverbs_old_errno(name: *const c_char) -> c_int {
    old(name);
    libc::ENOSYS
}

#[no_mangle]
extern "C" fn libibverbs_old_minus_one(name: *const c_char) -> c_int {
    old(name);
    -1
}

#[no_mangle]
extern "C" fn libibverbs_old_null(name: *const c_char) -> *mut c_void {
    old(name);
    null_mut()
}

#[no_mangle]
extern "C" fn libibverbs_old_zero(name: *const c_char) -> u64 {
    old(name);
    0
}

#[no_mangle]
extern "C" fn libibverbs_old_nothing(name: *const c_char) {
    old(name);
}
