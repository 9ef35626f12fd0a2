//! Sizes, alignments, offsets and numbers: our declarations, the binding crate's and C's are one.
//!
//! Both lists exist once (the structures below, the numbers in `constants.rs`). From them come
//! what Rust measures and a C program that measures the machine's verbs.h.
#![allow(non_camel_case_types)]

use std::collections::BTreeMap;
use std::mem::{align_of, size_of};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::addr_of;

/// What was measured: `[size, alignment]` of a type, `[offset, size]` of a member, `[value]` of a
/// number.
type Measures = BTreeMap<String, Vec<i64>>;

/// The rdma-core minor version whose verbs.h our declarations were written from.
const DECLARED_FROM: u32 = 44;

/// Every structure: its kind, its type in C, its name in Rust and all of its members.
///
/// `fixed` ones never change. Those that `grow` may get members at the end in a newer verbs.h, and
/// `grow_front` counts offsets back from its last member, which never moves. Members are listed
/// without nesting, and the compiler refuses a list that misses one; `within` are members of
/// members. A literal is a member's name in C where it differs.
macro_rules! every_struct {
    ($visit:ident $from:ident) => {
        $visit! { $from
            fixed "struct ibv_pd" ibv_pd { context, handle } within {}
            fixed "struct ibv_td_init_attr" ibv_td_init_attr { comp_mask } within {}
            fixed "struct ibv_td" ibv_td { context } within {}
            fixed "struct ibv_parent_domain_init_attr" ibv_parent_domain_init_attr {
                pd, td, comp_mask, alloc, free, pd_context
            } within {}
            fixed "struct ibv_xrcd" ibv_xrcd { context } within {}
            fixed "struct ibv_mr" ibv_mr { context, pd, addr, length, handle, lkey, rkey } within {}
            fixed "struct ibv_mw" ibv_mw { context, pd, rkey, handle, type_ = "type" } within {}
            fixed "struct ibv_ah" ibv_ah { context, pd, handle } within {}
            fixed "struct ibv_comp_channel" ibv_comp_channel { context, fd, refcnt } within {}
            fixed "struct ibv_cq" ibv_cq {
                context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
                async_events_completed
            } within {}
            grows "struct ibv_cq_init_attr_ex" ibv_cq_init_attr_ex {
                cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
            } within {}
            fixed "struct ibv_moderate_cq" ibv_moderate_cq { cq_count, cq_period } within {}
            fixed "struct ibv_modify_cq_attr" ibv_modify_cq_attr { attr_mask, moderate } within {
                moderate.cq_count, moderate.cq_period
            }
            fixed "struct ibv_poll_cq_attr" ibv_poll_cq_attr { comp_mask } within {}
            fixed "struct ibv_wc_tm_info" ibv_wc_tm_info { tag, priv_ = "priv" } within {}
            grows "struct ibv_cq_ex" ibv_cq_ex {
                context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
                async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll,
                read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
                read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
                read_flow_tag, read_tm_info, read_completion_wallclock_ns
            } within {}
            fixed "struct ibv_srq_attr" ibv_srq_attr { max_wr, max_sge, srq_limit } within {}
            fixed "struct ibv_srq_init_attr" ibv_srq_init_attr { srq_context, attr } within {
                attr.max_wr
            }
            fixed "struct ibv_tm_cap" ibv_tm_cap { max_num_tags, max_ops } within {}
            grows "struct ibv_srq_init_attr_ex" ibv_srq_init_attr_ex {
                srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap
            } within { attr.srq_limit, tm_cap.max_ops }
            fixed "struct ibv_srq" ibv_srq {
                context, srq_context, pd, handle, mutex, cond, events_completed
            } within {}
            fixed "struct ibv_global_route" ibv_global_route {
                dgid, flow_label, sgid_index, hop_limit, traffic_class
            } within { dgid.raw }
            fixed "struct ibv_grh" ibv_grh {
                version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid
            } within { sgid.raw, dgid.global.interface_id }
            fixed "struct ibv_ah_attr" ibv_ah_attr {
                grh, dlid, sl, src_path_bits, static_rate, is_global, port_num
            } within { grh.sgid_index }
            fixed "struct ibv_ece" ibv_ece { vendor_id, options, comp_mask } within {}
            fixed "struct ibv_qp_cap" ibv_qp_cap {
                max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
            } within {}
            fixed "struct ibv_qp_init_attr" ibv_qp_init_attr {
                qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
            } within { cap.max_send_wr, cap.max_inline_data }
            fixed "struct ibv_rx_hash_conf" ibv_rx_hash_conf {
                rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask
            } within {}
            grows "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex {
                qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
                create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
            } within {}
            fixed "struct ibv_qp_open_attr" ibv_qp_open_attr {
                comp_mask, qp_num, xrcd, qp_context, qp_type
            } within {}
            fixed "struct ibv_qp_attr" ibv_qp_attr {
                qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
                qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
                en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
                port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
            } within { ah_attr.grh.dgid.global.subnet_prefix, ah_attr.port_num }
            fixed "struct ibv_qp_rate_limit_attr" ibv_qp_rate_limit_attr {
                rate_limit, max_burst_sz, typical_pkt_sz, comp_mask
            } within {}
            fixed "struct ibv_qp" ibv_qp {
                context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
                cond, events_completed
            } within {}
            grows "struct ibv_qp_ex" ibv_qp_ex {
                qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
                wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
                wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
                wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
                wr_atomic_write
            } within { qp_base.qp_num }

            fixed "union ibv_gid" ibv_gid {} within { raw, global.subnet_prefix, global.interface_id }

            fixed "struct ibv_sge" ibv_sge { addr, length, lkey } within {}
            fixed "struct ibv_data_buf" ibv_data_buf { addr, length } within {}
            fixed "struct ibv_mw_bind_info" ibv_mw_bind_info {
                mr, addr, length, mw_access_flags
            } within {}
            fixed "struct ibv_mw_bind" ibv_mw_bind { wr_id, send_flags, bind_info } within {
                bind_info.length
            }
            fixed "struct ibv_send_wr" ibv_send_wr {
                wr_id, next, sg_list, num_sge, opcode, send_flags,
                imm_data_invalidated_rkey_union = "imm_data", wr, qp_type,
                // Unnamed in C; the larger member stands for it.
                bind_mw_tso_union = "bind_mw"
            } within {
                imm_data_invalidated_rkey_union.imm_data = "imm_data",
                imm_data_invalidated_rkey_union.invalidated_rkey = "invalidate_rkey",
                wr.rdma.remote_addr, wr.rdma.rkey,
                wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey,
                wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey,
                qp_type.xrc.remote_srqn,
                bind_mw_tso_union.bind_mw.mw = "bind_mw.mw",
                bind_mw_tso_union.bind_mw.rkey = "bind_mw.rkey",
                bind_mw_tso_union.bind_mw.bind_info = "bind_mw.bind_info",
                bind_mw_tso_union.bind_mw.bind_info.mw_access_flags =
                    "bind_mw.bind_info.mw_access_flags",
                bind_mw_tso_union.tso.hdr = "tso.hdr",
                bind_mw_tso_union.tso.hdr_sz = "tso.hdr_sz",
                bind_mw_tso_union.tso.mss = "tso.mss"
            }
            fixed "struct ibv_recv_wr" ibv_recv_wr { wr_id, next, sg_list, num_sge } within {}
            fixed "struct ibv_wc" ibv_wc {
                wr_id, status, opcode, vendor_err, byte_len,
                imm_data_invalidated_rkey_union = "imm_data", qp_num, src_qp, wc_flags, pkey_index,
                slid, sl, dlid_path_bits
            } within {
                imm_data_invalidated_rkey_union.invalidated_rkey = "invalidated_rkey"
            }

            fixed "struct _ibv_device_ops" _ibv_device_ops { _dummy1, _dummy2 } within {}
            fixed "struct ibv_device" ibv_device {
                _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path
            } within {}
            fixed "struct ibv_device_attr" ibv_device_attr {
                fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
                vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
                max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
                max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
                max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
                max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
                max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
            } within {}
            fixed "struct ibv_query_device_ex_input" ibv_query_device_ex_input { comp_mask } within {}
            fixed "struct ibv_odp_caps" ibv_odp_caps { general_caps, per_transport_caps } within {
                per_transport_caps.rc_odp_caps, per_transport_caps.uc_odp_caps,
                per_transport_caps.ud_odp_caps
            }
            fixed "struct ibv_tso_caps" ibv_tso_caps { max_tso, supported_qpts } within {}
            fixed "struct ibv_rss_caps" ibv_rss_caps {
                supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
                rx_hash_fields_mask, rx_hash_function
            } within {}
            fixed "struct ibv_packet_pacing_caps" ibv_packet_pacing_caps {
                qp_rate_limit_min, qp_rate_limit_max, supported_qpts
            } within {}
            fixed "struct ibv_tm_caps" ibv_tm_caps {
                max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge
            } within {}
            fixed "struct ibv_cq_moderation_caps" ibv_cq_moderation_caps {
                max_cq_count, max_cq_period
            } within {}
            fixed "struct ibv_pci_atomic_caps" ibv_pci_atomic_caps {
                fetch_add, swap, compare_swap
            } within {}
            grows "struct ibv_device_attr_ex" ibv_device_attr_ex {
                orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
                device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
                raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
                phys_port_cnt_ex
            } within {}
            grows "struct ibv_port_attr" ibv_port_attr {
                state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
                qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
                init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
                port_cap_flags2
            } within {}
            fixed "struct ibv_gid_entry" ibv_gid_entry {
                gid, gid_index, port_num, gid_type, ndev_ifindex
            } within {}
            fixed "struct ibv_values_ex" ibv_values_ex { comp_mask, raw_clock } within {
                raw_clock.tv_nsec
            }

            fixed "struct ibv_context_ops" ibv_context_ops {
                _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
                _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
                _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
                _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
                _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp,
                _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
                _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event
            } within {}
            fixed "struct ibv_context" ibv_context {
                device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
            } within { ops.post_send }
            grows_front "struct verbs_context" verbs_context {
                query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
                create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm,
                modify_flow_action_esp, destroy_flow_action, create_flow_action_esp,
                modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq,
                post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq,
                create_wq, query_rt_values, create_cq_ex, priv_ = "priv", query_device_ex,
                ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1, open_qp,
                create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3, sz,
                context
            } within { context.ops }
        }
    };
}

/// The event, which is the same declaration of ours with either source of the types.
macro_rules! event_struct {
    ($visit:ident $from:ident) => {
        $visit! { $from
            fixed "struct ibv_async_event" ibv_async_event { element, event_type } within {
                element.cq, element.qp, element.srq, element.wq, element.port_num
            }
        }
    };
}

fn pointee_size<T>(_: *const T) -> i64 {
    size_of::<T>() as i64
}

/// `a.b` as `stringify!` may print it, or the name that C has for it.
fn c_path(rust: &str, c: &[&str]) -> String {
    match c {
        [name] => (*name).to_string(),
        _ => rust.replace(' ', ""),
    }
}

fn back_from_end(kind: &str) -> bool {
    kind == "grows_front"
}

/// Visitor: what Rust measures of the types in `$from`.
macro_rules! measure {
    ($from:ident $($kind:ident $c:literal $name:ident
        { $($field:ident $(= $c_field:literal)?),* }
        within { $($($path:ident).+ $(= $c_path:literal)?),* }
    )*) => {{
        let mut measures = Measures::new();
        $({
            type T = $from::$name;
            let (size, align) = (size_of::<T>() as i64, align_of::<T>() as i64);
            measures.insert($c.into(), vec![size, align]);
            #[allow(unused)]
            let mut member = |path: String, offset: i64, member_size: i64| {
                let key = format!("{}.{path}", $c);
                let at = if back_from_end(stringify!($kind)) { size - offset } else { offset };
                measures.insert(key, vec![at, member_size]);
            };
            let room = std::mem::MaybeUninit::<T>::uninit();
            let start = room.as_ptr();
            // SAFETY: only addresses inside of `room` are computed, nothing is read.
            #[allow(unused_unsafe)]
            unsafe {
                $({
                    let at = addr_of!((*start).$field);
                    let offset = at.cast::<u8>().offset_from(start.cast()) as i64;
                    member(c_path(stringify!($field), &[$($c_field)?]), offset, pointee_size(at));
                })*
                $({
                    let at = addr_of!((*start).$($path).+);
                    let offset = at.cast::<u8>().offset_from(start.cast()) as i64;
                    let path = c_path(stringify!($($path).+), &[$($c_path)?]);
                    member(path, offset, pointee_size(at));
                })*
            }
        })*
        measures
    }};
}

/// Visitor: no type of ours has a member that the list doesn't name. (A union has an empty list.)
macro_rules! complete {
    ($from:ident $($kind:ident $c:literal $name:ident
        { $($field:ident $(= $c_field:literal)?),* } within { $($within:tt)* }
    )*) => { $( complete!(@one $from $name $($field)*); )* };
    (@one $from:ident $name:ident) => {};
    (@one $from:ident $name:ident $($field:ident)+) => {
        const _: fn(&$from::$name) = |whole| {
            let $from::$name { $($field: _),+ } = whole;
        };
    };
}

/// Visitor: lines of C that print the same measures.
macro_rules! c_lines {
    ($from:ident $($kind:ident $c:literal $name:ident
        { $($field:ident $(= $c_field:literal)?),* }
        within { $($($path:ident).+ $(= $c_path:literal)?),* }
    )*) => {{
        let mut lines = String::new();
        $({
            let kind = stringify!($kind);
            lines += &format!("TYPE({});\n", $c);
            let place = if back_from_end(kind) { "MEMBER_FROM_END" } else { "MEMBER" };
            let paths = [
                $(c_path(stringify!($field), &[$($c_field)?]),)*
                $(c_path(stringify!($($path).+), &[$($c_path)?]),)*
            ];
            for path in paths {
                lines += &format!("{place}({}, {path});\n", $c);
            }
        })*
        lines
    }};
}

#[cfg(feature = "declared")]
use verbs::declared;
#[cfg(feature = "declared")]
every_struct!(complete declared);
event_struct!(complete verbs);

/// Our own numbers.
fn our_numbers() -> Measures {
    let mut measures = Measures::new();
    macro_rules! visit {
        ($($kind:ident $group:ident { $($name:ident = $value:expr,)* })*) => { $($(
            measures.insert(stringify!($name).into(), vec![i64::from(verbs::$name)]);
        )*)* };
    }
    verbs::every_number!(visit);
    measures
}

/// The kind of a number's group, by name.
fn number_kinds() -> Vec<(&'static str, &'static str)> {
    macro_rules! visit {
        ($($kind:ident $group:ident { $($name:ident = $value:expr,)* })*) => {
            vec![$($( (stringify!($name), stringify!($kind)), )*)*]
        };
    }
    verbs::every_number!(visit)
}

/// The binding crate's numbers, as far as it has them.
#[cfg(feature = "rdma-sys")]
fn binding_numbers() -> Measures {
    macro_rules! number {
        (module $group:ident $name:ident) => {
            Some(i64::from(rdma_sys::$group::$name))
        };
        (signed $group:ident $name:ident) => {
            Some(i64::from(rdma_sys::$group::$name))
        };
        (bits $group:ident $name:ident) => {
            Some(i64::from(rdma_sys::$group::$name.0))
        };
        (rust $group:ident $name:ident) => {
            Some(rdma_sys::$group::$name as i64)
        };
        (plain $group:ident $name:ident) => {
            Some(i64::from(rdma_sys::$name))
        };
        (unnamed $group:ident $name:ident) => {
            None
        };
        (newer $group:ident $name:ident) => {
            None
        };
    }
    let mut measures = Measures::new();
    macro_rules! visit {
        ($($kind:ident $group:ident { $($name:ident = $value:expr,)* })*) => { $($(
            let value: Option<i64> = number!($kind $group $name);
            if let Some(value) = value {
                measures.insert(stringify!($name).into(), vec![value]);
            }
        )*)* };
    }
    verbs::every_number!(visit);
    measures
}

/// The minor version of the machine's rdma-core (1.14.44.0 gives 44).
fn rdma_core_version() -> u32 {
    let out = Command::new("pkg-config").args(["--modversion", "libibverbs"]).output();
    let out = out.expect("pkg-config, which tells the version of verbs.h, runs");
    let text = String::from_utf8(out.stdout).expect("a version is text");
    let minor = text.trim().split('.').nth(2).and_then(|part| part.parse().ok());
    minor.unwrap_or_else(|| panic!("pkg-config --modversion libibverbs said {text:?}"))
}

/// What C measures: writes the program, compiles it against the machine's verbs.h and runs it.
fn measured_by_c(version: u32) -> Measures {
    let mut source = String::from(
        r#"#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>
#define SIZE(T, m) sizeof(((T *)0)->m)
#define TYPE(T) printf("%s|%zu %zu\n", #T, sizeof(T), _Alignof(T))
#define MEMBER(T, m) printf("%s.%s|%zu %zu\n", #T, #m, offsetof(T, m), SIZE(T, m))
#define MEMBER_FROM_END(T, m) \
	printf("%s.%s|%zu %zu\n", #T, #m, sizeof(T) - offsetof(T, m), SIZE(T, m))
#define NUMBER(n) printf("%s|%lld\n", #n, (long long)n)
int main(void)
{
"#,
    );
    source += &every_struct!(c_lines unused);
    source += &event_struct!(c_lines unused);
    for (name, kind) in number_kinds() {
        if kind != "newer" || version > DECLARED_FROM {
            source += &format!("NUMBER({name});\n");
        }
    }
    source += "return 0;\n}\n";

    let stem = format!("layout-{}", std::process::id());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (c, program) = (dir.join(format!("{stem}.c")), dir.join(&stem));
    std::fs::write(&c, source).expect("the temporary folder can be written to");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(&cc).arg("-o").arg(&program).arg(&c).output();
    let built = built.unwrap_or_else(|e| panic!("the C compiler {cc} does not run: {e}"));
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{cc} {}:\n{said}", c.display());
    let ran = Command::new(&program).output().expect("a program just built runs");
    assert!(ran.status.success());
    std::fs::remove_file(&c).expect("the program's source can be removed");
    std::fs::remove_file(&program).expect("the program can be removed");

    let parse = |line: &str| {
        let (name, numbers) = line.split_once('|').expect("a name and its numbers");
        let numbers = numbers.split(' ').map(|n| n.parse().expect("a number"));
        (name.to_string(), numbers.collect())
    };
    String::from_utf8(ran.stdout).expect("text").lines().map(parse).collect()
}

/// The types that a newer verbs.h may have made larger.
#[cfg(feature = "declared")]
fn growing() -> Vec<&'static str> {
    macro_rules! visit {
        ($from:ident $($kind:ident $c:literal $name:ident { $($f:tt)* } within { $($w:tt)* })*) => {
            vec![$( (stringify!($kind), $c) ),*]
        };
    }
    let kinds = every_struct!(visit unused);
    kinds.into_iter().filter(|(kind, _)| *kind != "fixed").map(|(_, name)| name).collect()
}

/// Asserts that two sides measured the same things the same.
fn compare(left: (&str, &Measures), right: (&str, &Measures), may_grow: &[&str]) {
    let ((left_name, left), (right_name, right)) = (left, right);
    assert!(left.len() > 50, "{left_name} measured next to nothing");
    let mut wrong = Vec::new();
    for key in left.keys().chain(right.keys().filter(|key| !left.contains_key(*key))) {
        let (l, r) = (left.get(key), right.get(key));
        let grown = may_grow.contains(&key.as_str()) && l.map(|l| l[1]) == r.map(|r| r[1]);
        if l != r && !grown {
            wrong.push(format!("{key}: {left_name} {l:?}, {right_name} {r:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn layouts_and_numbers_are_c_s() {
    let version = rdma_core_version();
    assert!(version >= DECLARED_FROM, "rdma-core {version} is older than {DECLARED_FROM}");
    let c = measured_by_c(version);
    let (c_numbers, c_types): (Measures, Measures) =
        c.into_iter().partition(|(_, measured)| measured.len() == 1);

    #[cfg(feature = "declared")]
    {
        let may_grow = if version > DECLARED_FROM { growing() } else { Vec::new() };
        let mut ours = every_struct!(measure declared);
        ours.append(&mut event_struct!(measure verbs));
        compare(("declared", &ours), ("C", &c_types), &may_grow);
    }
    #[cfg(feature = "rdma-sys")]
    {
        let mut theirs = every_struct!(measure rdma_sys);
        theirs.append(&mut event_struct!(measure verbs));
        compare(("rdma-sys", &theirs), ("C", &c_types), &[]);
    }

    let mut numbers = our_numbers();
    if version == DECLARED_FROM {
        for (name, kind) in number_kinds() {
            if kind == "newer" {
                numbers.remove(name);
            }
        }
    }
    compare(("constants", &numbers), ("C", &c_numbers), &[]);
}

#[test]
#[cfg(all(feature = "rdma-sys", feature = "declared"))]
fn our_declarations_are_the_binding_crate_s() {
    let may_grow = if rdma_core_version() > DECLARED_FROM { growing() } else { Vec::new() };
    let (ours, theirs) = (every_struct!(measure declared), every_struct!(measure rdma_sys));
    compare(("declared", &ours), ("rdma-sys", &theirs), &may_grow);
}

#[test]
#[cfg(feature = "rdma-sys")]
fn our_numbers_are_the_binding_crate_s() {
    let theirs = binding_numbers();
    let mut ours = our_numbers();
    ours.retain(|name, _| theirs.contains_key(name));
    assert!(theirs.len() > 200, "only {} of the binding crate's numbers", theirs.len());
    compare(("constants", &ours), ("rdma-sys", &theirs), &[]);
}

#[test]
#[cfg(feature = "rdma-sys")]
fn the_event_is_the_binding_crate_s() {
    // Its type is an enumeration there, of the same size as our number.
    type Theirs = rdma_sys::ibv_async_event;
    assert_eq!(size_of::<Theirs>(), size_of::<verbs::ibv_async_event>());
    assert_eq!(align_of::<Theirs>(), align_of::<verbs::ibv_async_event>());
}
