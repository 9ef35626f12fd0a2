// SPDX-License-Identifier: MIT OR Apache-2.0
//
// mwctl.hpp: mwctl.h for C++17 and later. Nothing to link but libmwctl.
//
//   #include <mwctl.hpp>
//
//   // One client may write one block; then its right is taken back. `qp` is an RC queue pair in RTS.
//   std::error_code serve(ibv_context *device, ibv_pd *pd, ibv_qp *qp)
//   {
//           auto ctx = mwctl::context::open(device);
//           if (!ctx)
//                   return ctx.error();
//           auto domain = ctx->open_domain(pd);
//           if (!domain)
//                   return domain.error();
//           auto region = domain->register_region(64 << 20);
//           if (!region)
//                   return region.error();
//           auto client = domain->attach_peer(qp);
//           if (!client)
//                   return client.error();
//           auto block = region->take_blocks(1);
//           if (!block)
//                   return block.error();
//           auto right = client->grant(*region, block->bytes(), mwctl::access::write);
//           if (!right)
//                   return right.error();
//           tell_client(qp, right->addr(), right->rkey());
//
//           while (client_behaves(block->bytes())) {
//                   ibv_wc wc[16];
//                   handle(wc, ctx->poll_cq(qp->send_cq, wc));
//           }
//
//           auto proof = right->revoke();                  // or let ~grant do it
//           std::puts(proof ? mwctl::text(*proof) : mwctl::text(proof.code()));
//           return proof.error();
//   }       // the block goes back, the queue pair is detached, region, domain and context are closed
//
// Handles
//   context, domain, region, block, peer, grant, grant_batch and chain own what they name. They move
//   and don't copy; one that was moved from, closed or never filled is empty: it has id 0, converts to
//   false, whatever is asked of it is refused with INVALID_ARGUMENT, and its end does nothing. Moving
//   a handle onto itself changes nothing; moving one onto another ends that one first. So a row of calls
//   may be looked at once, at its end, where it does not matter which of them failed.
//
// Their ends
//   A destructor does what the explicit call does: ~grant revokes, ~peer detaches, ~block gives back,
//   ~chain aborts, the others close. Declare them in the order context, domain, region, peer, grants,
//   and C++ ends them in the order that mwctl.h asks for. A grant may also outlive its peer, its
//   region and the context's close(): then there is nothing left to do, and nothing is done.
//
//   What a destructor can't end (BUSY: something under it is open; OPEN: a right without a proof) is
//   left as it is on the library's books, on purpose: a region that a client may still reach stays
//   mapped, and its blocks are not handed out again. The handler of on_unclosed() is told;
//   print_unclosed is one that writes a line to stderr. Without a handler nobody is, for a library has
//   no output of its own: mwctl_domain_grants lists what is left. The process is not ended for it, as a
//   client that does not answer could then end the server. Where that matters, call revoke(), detach() or close() and look
//   at what they return: on an error the handle keeps what it holds, and the call can be repeated.
//
//   ~grant and ~grant_batch wait for the proof, with the context's deadline, or queue the revocation
//   (ending::queue, chosen when the right is asked for) and then never wait; the handler hears if that
//   ends without a proof. Choose the latter where the destructor runs on the thread that polls (polling
//   YOURS). Where waiting can't end (WOULD_DEADLOCK), they queue it. A batch ends in one call, which
//   is one post for each client's share. In a forked child destructors do nothing.
//
// Threads
//   The library may be called from any thread. A handle is like any other value: const members may be
//   called by several threads at once; what moves, ends or assigns to it wants it to itself.
//
// Errors
//   Everything is noexcept and allocates with nothrow (NO_MEMORY). Calls return result<T>: true on
//   success, with code(), error() as std::error_code in category(), verbs_errno() of a failed verbs
//   call, and the value by * and ->. After an error the value is empty, but for rights: what may be
//   open all the same (a grant that TIMED_OUT, those of a batch that went well) is in it, so that it
//   is revoked with it. mwctl::throwing::or_throw(result) gives the value, or throws
//   mwctl::throwing::failure, a std::system_error. error() compares with mwctl::status and, where
//   there is a like, with std::errc.
//
// Callbacks
//   The forms named *_start never wait and take a callable, f(status, span<const item>), heard exactly
//   once as mwctl.h says of mwctl_done_fn; if the call itself fails, never. It must not throw. One that
//   is trivially copyable and no larger than a pointer (a lambda that captures one pointer or reference,
//   std::ref(f), a function) costs no allocation, another is moved to the heap until then.
//
// Only the C interface is used; native() gives its handles, adopt() and release() pass ownership.

#ifndef MWCTL_HPP
#define MWCTL_HPP

#include <mwctl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#if __cplusplus >= 202002L
#include <ranges>
#endif

namespace mwctl {

// ---- numbers ----

// enum mwctl_status. A newer library may return one that has no name here.
enum class status : std::int32_t {
	ok = MWCTL_STATUS_OK,
	pending = MWCTL_STATUS_PENDING,
	invalid_argument = MWCTL_STATUS_INVALID_ARGUMENT,
	options_size = MWCTL_STATUS_OPTIONS_SIZE,
	unknown_flags = MWCTL_STATUS_UNKNOWN_FLAGS,
	length_zero = MWCTL_STATUS_LENGTH_ZERO,
	length_too_long = MWCTL_STATUS_LENGTH_TOO_LONG,
	out_of_range = MWCTL_STATUS_OUT_OF_RANGE,
	foreign_pd = MWCTL_STATUS_FOREIGN_PD,
	foreign_context = MWCTL_STATUS_FOREIGN_CONTEXT,
	stale_id = MWCTL_STATUS_STALE_ID,
	access_unsupported = MWCTL_STATUS_ACCESS_UNSUPPORTED,
	access_missing_on_region = MWCTL_STATUS_ACCESS_MISSING_ON_REGION,
	access_missing_on_qp = MWCTL_STATUS_ACCESS_MISSING_ON_QP,
	access_none = MWCTL_STATUS_ACCESS_NONE,
	not_rc = MWCTL_STATUS_NOT_RC,
	not_connected = MWCTL_STATUS_NOT_CONNECTED,
	qp_state = MWCTL_STATUS_QP_STATE,
	budget_too_large = MWCTL_STATUS_BUDGET_TOO_LARGE,
	qp_undeclared = MWCTL_STATUS_QP_UNDECLARED,
	qp_without_window_ops = MWCTL_STATUS_QP_WITHOUT_WINDOW_OPS,
	already_attached = MWCTL_STATUS_ALREADY_ATTACHED,
	polling_mode = MWCTL_STATUS_POLLING_MODE,
	parent_open = MWCTL_STATUS_PARENT_OPEN,
	parent_not_bindable = MWCTL_STATUS_PARENT_NOT_BINDABLE,
	memory_kind = MWCTL_STATUS_MEMORY_KIND,
	mixed_peers = MWCTL_STATUS_MIXED_PEERS,
	duplicate = MWCTL_STATUS_DUPLICATE,
	block_not_taken = MWCTL_STATUS_BLOCK_NOT_TAKEN,
	not_attached = MWCTL_STATUS_NOT_ATTACHED,
	unsupported = MWCTL_STATUS_UNSUPPORTED,
	no_memory = MWCTL_STATUS_NO_MEMORY,
	device_limit = MWCTL_STATUS_DEVICE_LIMIT,
	keys_exhausted = MWCTL_STATUS_KEYS_EXHAUSTED,
	no_blocks = MWCTL_STATUS_NO_BLOCKS,
	pool_empty = MWCTL_STATUS_POOL_EMPTY,
	queue_full = MWCTL_STATUS_QUEUE_FULL,
	too_many = MWCTL_STATUS_TOO_MANY,
	busy = MWCTL_STATUS_BUSY,
	in_progress = MWCTL_STATUS_IN_PROGRESS,
	would_deadlock = MWCTL_STATUS_WOULD_DEADLOCK,
	peer_dead = MWCTL_STATUS_PEER_DEAD,
	peer_leaving = MWCTL_STATUS_PEER_LEAVING,
	no_grant = MWCTL_STATUS_NO_GRANT,
	unknown_queue = MWCTL_STATUS_UNKNOWN_QUEUE,
	range_uncertain = MWCTL_STATUS_RANGE_UNCERTAIN,
	wrong_thread = MWCTL_STATUS_WRONG_THREAD,
	timed_out = MWCTL_STATUS_TIMED_OUT,
	open = MWCTL_STATUS_OPEN,
	bind_failed = MWCTL_STATUS_BIND_FAILED,
	post_failed = MWCTL_STATUS_POST_FAILED,
	not_posted = MWCTL_STATUS_NOT_POSTED,
	verbs_error = MWCTL_STATUS_VERBS_ERROR,
	forked = MWCTL_STATUS_FORKED,
	poisoned = MWCTL_STATUS_POISONED
};

// enum mwctl_proof.
enum class proof : std::int32_t {
	none = MWCTL_PROOF_NONE,
	invalidated = MWCTL_PROOF_INVALIDATED,
	deallocated = MWCTL_PROOF_DEALLOCATED,
	qp_fenced = MWCTL_PROOF_QP_FENCED,
	peer_invalidated = MWCTL_PROOF_PEER_INVALIDATED,
	never_bound = MWCTL_PROOF_NEVER_BOUND
};

// enum mwctl_kill: what a revocation's deadline may do to the queue pair.
enum class kill : std::int32_t { allowed = MWCTL_KILL_ALLOWED, never = MWCTL_KILL_NEVER };

// enum mwctl_event_kind.
enum class event_kind : std::int32_t {
	peer_killed = MWCTL_EVENT_KIND_PEER_KILLED,
	peer_dead = MWCTL_EVENT_KIND_PEER_DEAD,
	peer_invalidated = MWCTL_EVENT_KIND_PEER_INVALIDATED,
	foreign_invalidation = MWCTL_EVENT_KIND_FOREIGN_INVALIDATION
};

// enum mwctl_key_kind: what a key is.
enum class key_kind : std::int32_t {
	not_ours = MWCTL_KEY_KIND_NOT_OURS,
	grant = MWCTL_KEY_KIND_GRANT,
	ended = MWCTL_KEY_KIND_ENDED,
	unused = MWCTL_KEY_KIND_UNUSED,
	parent_rkey = MWCTL_KEY_KIND_PARENT_RKEY,
	lkey = MWCTL_KEY_KIND_LKEY
};

// Verbs' own IBV_ACCESS_REMOTE_* flags.
enum class access : std::uint32_t {
	none = 0,
	write = IBV_ACCESS_REMOTE_WRITE,
	read = IBV_ACCESS_REMOTE_READ,
	atomic = IBV_ACCESS_REMOTE_ATOMIC
};
constexpr access operator|(access a, access b) noexcept
{
	return static_cast<access>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr access operator&(access a, access b) noexcept
{
	return static_cast<access>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}

// Static sentences.
[[nodiscard]] inline const char *text(status s) noexcept
{
	return ::mwctl_status_text(static_cast<std::int32_t>(s));
}
[[nodiscard]] inline const char *text(proof p) noexcept
{
	return ::mwctl_proof_text(static_cast<std::int32_t>(p));
}
[[nodiscard]] inline const char *text(key_kind k) noexcept
{
	return ::mwctl_key_text(static_cast<std::int32_t>(k));
}

// The version of the library that runs; MWCTL_VERSION is the header's.
[[nodiscard]] inline std::uint32_t version() noexcept { return ::mwctl_version(); }

// ---- std::error_code ----

namespace detail {

class status_category final : public std::error_category {
public:
	const char *name() const noexcept override { return "mwctl"; }
	std::string message(int value) const override { return ::mwctl_status_text(value); }
	std::error_condition default_error_condition(int value) const noexcept override
	{
		switch (static_cast<status>(value)) {
		case status::invalid_argument:
		case status::options_size:
		case status::unknown_flags:
		case status::length_zero:
		case status::length_too_long:
		case status::out_of_range:
		case status::foreign_pd:
		case status::foreign_context:
		case status::access_none:
		case status::budget_too_large:
		case status::mixed_peers:
		case status::duplicate:
		case status::block_not_taken:
		case status::not_attached:
			return std::errc::invalid_argument;
		case status::access_missing_on_region:
		case status::access_missing_on_qp:
			return std::errc::permission_denied;
		case status::not_connected:
			return std::errc::not_connected;
		case status::peer_dead:
			return std::errc::connection_aborted;
		case status::access_unsupported:
		case status::memory_kind:
		case status::unsupported:
			return std::errc::not_supported;
		case status::no_memory:
			return std::errc::not_enough_memory;
		case status::device_limit:
		case status::no_blocks:
			return std::errc::no_buffer_space;
		case status::pool_empty:
		case status::queue_full:
			return std::errc::resource_unavailable_try_again;
		case status::too_many:
			return std::errc::argument_list_too_long;
		case status::busy:
			return std::errc::device_or_resource_busy;
		case status::in_progress:
			return std::errc::operation_in_progress;
		case status::would_deadlock:
			return std::errc::resource_deadlock_would_occur;
		case status::wrong_thread:
		case status::forked:
			return std::errc::operation_not_permitted;
		case status::timed_out:
			return std::errc::timed_out;
		case status::bind_failed:
		case status::post_failed:
		case status::verbs_error:
			return std::errc::io_error;
		case status::poisoned:
			return std::errc::state_not_recoverable;
		default:
			return {value, *this};
		}
	}
};

inline const status_category the_category{};

} // namespace detail

[[nodiscard]] inline const std::error_category &category() noexcept { return detail::the_category; }
[[nodiscard]] inline std::error_code make_error_code(status s) noexcept
{
	return {static_cast<int>(s), category()};
}

} // namespace mwctl

namespace std {
template <>
struct is_error_code_enum<mwctl::status> : true_type {};
} // namespace std

namespace mwctl {

// ---- result ----

// How a call ended, and its value: see Errors above.
template <class T>
class [[nodiscard]] result;

template <>
class [[nodiscard]] result<void> {
public:
	result() noexcept = default;
	result(status s, std::int32_t verbs_errno = 0) noexcept : status_(s), errno_(verbs_errno) {}

	// Success.
	[[nodiscard]] explicit operator bool() const noexcept { return status_ == status::ok; }
	[[nodiscard]] status code() const noexcept { return status_; }
	[[nodiscard]] std::error_code error() const noexcept { return make_error_code(status_); }
	// The errno value of a failed verbs call; else 0.
	[[nodiscard]] std::int32_t verbs_errno() const noexcept { return errno_; }

private:
	status status_ = status::ok;
	std::int32_t errno_ = 0;
};

template <class T>
class [[nodiscard]] result : public result<void> {
public:
	result(T value) noexcept : value_(std::move(value)) {}
	result(status s) noexcept : result<void>(s) {}
	result(result<void> how, T value) noexcept : result<void>(how), value_(std::move(value)) {}

	// Never undefined: see Errors above.
	[[nodiscard]] T &operator*() & noexcept { return value_; }
	[[nodiscard]] const T &operator*() const & noexcept { return value_; }
	[[nodiscard]] T &&operator*() && noexcept { return std::move(value_); }
	[[nodiscard]] T *operator->() noexcept { return &value_; }
	[[nodiscard]] const T *operator->() const noexcept { return &value_; }

private:
	T value_{};
};

// ---- span ----

// A range of somebody else's array: std::span for C++17, and convertible from and to it and every
// container with data() and size().
template <class T>
class span {
	template <class C>
	using data_of = decltype(std::declval<C &>().data());
	template <class U>
	static constexpr bool fits = std::is_convertible_v<U (*)[], T (*)[]>;

public:
	using element_type = T;
	using value_type = std::remove_cv_t<T>;
	using size_type = std::size_t;
	using difference_type = std::ptrdiff_t;
	using pointer = T *;
	using reference = T &;
	using iterator = T *;

	constexpr span() noexcept = default;
	constexpr span(T *first, std::size_t n) noexcept : first_(first), n_(n) {}
	template <std::size_t N>
	constexpr span(T (&array)[N]) noexcept : first_(array), n_(N) {}
	// A temporary container only for elements that are const: it lives until the end of the call.
	template <class C, class Data = data_of<C>, class = decltype(std::declval<C &>().size()),
		  class = std::enable_if_t<std::is_pointer_v<Data> && fits<std::remove_pointer_t<Data>> &&
					   !std::is_same_v<std::remove_cv_t<C>, span>>>
	constexpr span(C &container) noexcept : first_(container.data()), n_(container.size())
	{
	}
	template <class C, class Data = data_of<const C>, class = decltype(std::declval<const C &>().size()),
		  class = std::enable_if_t<std::is_pointer_v<Data> && fits<std::remove_pointer_t<Data>> &&
					   !std::is_same_v<C, span>>,
		  class = void>
	constexpr span(const C &container) noexcept : first_(container.data()), n_(container.size())
	{
	}

	[[nodiscard]] constexpr T *data() const noexcept { return first_; }
	[[nodiscard]] constexpr std::size_t size() const noexcept { return n_; }
	[[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return n_ * sizeof(T); }
	[[nodiscard]] constexpr bool empty() const noexcept { return n_ == 0; }
	[[nodiscard]] constexpr T &operator[](std::size_t i) const noexcept { return first_[i]; }
	[[nodiscard]] constexpr T *begin() const noexcept { return first_; }
	[[nodiscard]] constexpr T *end() const noexcept { return first_ + n_; }
	// Cut to what is there.
	[[nodiscard]] constexpr span subspan(std::size_t from, std::size_t n = SIZE_MAX) const noexcept
	{
		from = from < n_ ? from : n_;
		return {first_ + from, n < n_ - from ? n : n_ - from};
	}

private:
	T *first_ = nullptr;
	std::size_t n_ = 0;
};
template <class C>
span(C &) -> span<std::remove_pointer_t<decltype(std::declval<C &>().data())>>;
template <class T, std::size_t N>
span(T (&)[N]) -> span<T>;

} // namespace mwctl

#if defined(__cpp_lib_ranges)
template <class T>
inline constexpr bool std::ranges::enable_borrowed_range<mwctl::span<T>> = true;
template <class T>
inline constexpr bool std::ranges::enable_view<mwctl::span<T>> = true;
#endif

namespace mwctl {

// ---- what destructors could not end ----

enum class kind : std::int32_t { context, domain, region, block, peer, grant, chain };

[[nodiscard]] constexpr const char *text(kind k) noexcept
{
	switch (k) {
	case kind::context: return "context";
	case kind::domain: return "domain";
	case kind::region: return "region";
	case kind::block: return "block";
	case kind::peer: return "peer";
	case kind::grant: return "grant";
	case kind::chain: return "chain";
	}
	return "object";
}

// Still on the library's books: `id` (of a block, its first byte's address) can be ended by mwctl.h's
// calls, or adopted.
struct unclosed {
	kind what;
	status why;
	std::uint64_t id;
	::mwctl_context *context;
};
using unclosed_handler = void (*)(const unclosed &) noexcept;

// A handler: a line to stderr.
inline void print_unclosed(const unclosed &it) noexcept
{
	std::fprintf(stderr, "mwctl: %s %#llx is left open by its destructor: %s\n", text(it.what),
		     static_cast<unsigned long long>(it.id), text(it.why));
}

namespace detail {

inline std::atomic<unclosed_handler> on_unclosed{nullptr};

inline void tell_unclosed(kind what, status why, std::uint64_t id, ::mwctl_context *ctx) noexcept
{
	if (auto handler = on_unclosed.load(std::memory_order_acquire))
		handler({what, why, id, ctx});
}

} // namespace detail

// Sets who hears of them, for the process, and returns who did before; nullptr, as at first: nobody. It may be
// called on any thread that destroys a handle or makes callbacks come.
inline unclosed_handler on_unclosed(unclosed_handler handler) noexcept
{
	return detail::on_unclosed.exchange(handler, std::memory_order_acq_rel);
}

// ---- plain answers, as mwctl.h has them ----

using request = ::mwctl_request;
using item = ::mwctl_result; // how one grant or revocation of many ended
using capabilities = ::mwctl_capabilities;
using statistics = ::mwctl_stats;
using domain_options = ::mwctl_domain_options;
using domain_info = ::mwctl_domain_info;
using register_options = ::mwctl_register_options;
using attach_options = ::mwctl_attach_options;
using region_info = ::mwctl_region_info;
using peer_options = ::mwctl_peer_options;
using peer_info = ::mwctl_peer_info;
using grant_info = ::mwctl_grant_info;
using key_info = ::mwctl_key_info;

[[nodiscard]] inline status status_of(const item &it) noexcept { return static_cast<status>(it.status); }
[[nodiscard]] inline proof proof_of(const item &it) noexcept { return static_cast<proof>(it.proof); }
[[nodiscard]] inline key_kind kind_of(const key_info &it) noexcept { return static_cast<key_kind>(it.kind); }

// A deadline from now; 0 is the context's default. A negative one has passed.
using timeout = std::chrono::microseconds;
inline constexpr timeout default_timeout{0};

// What ~grant does.
enum class ending : std::uint8_t {
	wait, // until the right is proved gone, or the deadline
	queue // starts the revocation and never waits
};

struct grant_options {
	mwctl::timeout timeout = default_timeout;
	ending at_end = ending::wait;
	mwctl::kill kill = mwctl::kill::allowed; // of the revocation by the destructor
};
inline constexpr grant_options queued{default_timeout, ending::queue, kill::allowed};

// Something that no call of the application's asked for.
struct event {
	event_kind kind;
	std::uint32_t qp_num;
	std::uint64_t peer;
	std::uint64_t grant;
};

// Options of context::open. Callables are held by reference: they must live until the context is closed,
// must not throw and may be called on any thread that is inside the library.
class context_options {
public:
	// The deadline of calls that name none; 0: one second.
	context_options &timeout(mwctl::timeout t) noexcept
	{
		raw_.timeout_us = t.count() < 0 ? 1 : static_cast<std::uint64_t>(t.count());
		return *this;
	}
	// f(int severity, const char *text): 0 error, 1 warning. Must not call the library.
	template <class F>
	context_options &log(F &f) noexcept
	{
		raw_.log_user = const_cast<void *>(static_cast<const void *>(std::addressof(f)));
		raw_.log = [](void *user, std::int32_t severity, const char *line) noexcept {
			(*static_cast<F *>(user))(static_cast<int>(severity), line);
		};
		return *this;
	}
	// f(const event &). May call the library.
	template <class F>
	context_options &on_event(F &f) noexcept
	{
		raw_.event_user = const_cast<void *>(static_cast<const void *>(std::addressof(f)));
		raw_.on_event = [](void *user, const ::mwctl_event *it) noexcept {
			(*static_cast<F *>(user))(event{static_cast<event_kind>(it->kind), it->qp_num,
							it->peer, it->grant});
		};
		return *this;
	}
	[[nodiscard]] const ::mwctl_context_options &native() const noexcept { return raw_; }

private:
	::mwctl_context_options raw_{};
};

// Before ibv_create_qp and ibv_create_cq: adds to them what one peer with this budget (0: 16) needs.
inline result<void> size_queues(std::uint32_t budget, ibv_qp_cap &cap, int &cqe) noexcept
{
	return static_cast<status>(::mwctl_size_queues(budget, &cap, &cqe));
}

// One of the two, where they are created in different places.
inline result<void> size_queues(std::uint32_t budget, ibv_qp_cap &cap) noexcept
{
	return static_cast<status>(::mwctl_size_queues(budget, &cap, nullptr));
}

inline result<void> size_queues(std::uint32_t budget, int &cqe) noexcept
{
	return static_cast<status>(::mwctl_size_queues(budget, nullptr, &cqe));
}

// ---- inner parts ----

namespace detail {

[[nodiscard]] inline std::uint64_t us(timeout t) noexcept
{
	return t.count() < 0 ? 1 : static_cast<std::uint64_t>(t.count());
}

[[nodiscard]] constexpr status as_status(::mwctl_status s) noexcept { return static_cast<status>(s); }

// Nothing is left open after these.
[[nodiscard]] constexpr bool is_ended(status s) noexcept
{
	return s == status::ok || s == status::stale_id || s == status::forked;
}

// What all handles of a context share: its address, until it is closed.
struct core {
	std::atomic<::mwctl_context *> ctx{nullptr};
	std::atomic<std::size_t> handles{1};
};

class link {
public:
	link() noexcept = default;
	explicit link(core *first) noexcept : core_(first) {}
	link(const link &from) noexcept : core_(from.core_)
	{
		if (core_)
			core_->handles.fetch_add(1, std::memory_order_relaxed);
	}
	link(link &&from) noexcept : core_(std::exchange(from.core_, nullptr)) {}
	link &operator=(link from) noexcept
	{
		std::swap(core_, from.core_);
		return *this;
	}
	~link()
	{
		if (core_ && core_->handles.fetch_sub(1, std::memory_order_acq_rel) == 1)
			delete core_;
	}
	// NULL once it is closed; the C calls refuse that.
	[[nodiscard]] ::mwctl_context *ctx() const noexcept
	{
		return core_ ? core_->ctx.load(std::memory_order_acquire) : nullptr;
	}
	void closed() noexcept { core_->ctx.store(nullptr, std::memory_order_release); }

private:
	core *core_ = nullptr;
};

// A callable behind a C callback: inside the user pointer if it fits there, else on the heap.
template <class F>
class callback {
	using function = std::decay_t<F>;
	static constexpr bool inside = sizeof(function) <= sizeof(void *) &&
				       alignof(function) <= alignof(void *) &&
				       std::is_trivially_copyable_v<function>;

public:
	explicit callback(F &&f) noexcept
	{
		static_assert(std::is_nothrow_constructible_v<function, F &&>, "a callback must not throw when moved");
		if constexpr (inside) {
			function copy(std::forward<F>(f));
			std::memcpy(&user_, static_cast<const void *>(std::addressof(copy)), sizeof(copy));
		} else {
			user_ = new (std::nothrow) function(std::forward<F>(f));
		}
	}
	[[nodiscard]] bool is_ready() const noexcept { return inside || user_; }
	[[nodiscard]] void *user() const noexcept { return user_; }
	// After a call that did not begin.
	result<void> unless(status s) noexcept
	{
		if constexpr (!inside) {
			if (s != status::ok)
				delete static_cast<function *>(user_);
		}
		return s;
	}
	static void call(void *user, ::mwctl_status s, const item *results, std::size_t n) noexcept
	{
		if constexpr (inside) {
			alignas(void *) unsigned char place[sizeof(void *)];
			std::memcpy(place, &user, sizeof(user));
			(*std::launder(reinterpret_cast<function *>(place)))(as_status(s), span<const item>(results, n));
		} else {
			std::unique_ptr<function> f(static_cast<function *>(user));
			(*f)(as_status(s), span<const item>(results, n));
		}
	}

private:
	void *user_ = nullptr;
};

// Begins an asynchronous call: `begin(fn, user)` is the C call.
template <class F, class Begin>
result<void> start(F &&f, Begin begin) noexcept
{
	callback<F> heard(std::forward<F>(f));
	if (!heard.is_ready())
		return status::no_memory;
	return heard.unless(as_status(begin(&callback<F>::call, heard.user())));
}

// Hears of revocations that destructors queued; `user` is the context.
inline void queued_end(void *user, ::mwctl_status s, const item *results, std::size_t n) noexcept
{
	for (std::size_t i = 0; i < n; i++)
		if (!is_ended(status_of(results[i])))
			tell_unclosed(kind::grant, status_of(results[i]), results[i].grant,
				      static_cast<::mwctl_context *>(user));
	if (n == 0 && !is_ended(as_status(s)))
		tell_unclosed(kind::grant, as_status(s), 0, static_cast<::mwctl_context *>(user));
}

// What ~grant and ~grant_batch do. `outs` has room for n.
inline void end_grants(::mwctl_context *ctx, const std::uint64_t *ids, item *outs, std::size_t n, ending how,
		       kill k) noexcept
{
	if (!ctx || n == 0)
		return;
	status s = status::would_deadlock;
	if (how == ending::wait) {
		for (std::size_t i = 0; i < n; i++)
			outs[i] = item{ids[i], 0, MWCTL_STATUS_PENDING, MWCTL_PROOF_NONE, 0};
		s = as_status(::mwctl_revoke_batch(ctx, ids, n, 0, static_cast<std::int32_t>(k), outs));
	}
	if (s == status::would_deadlock) {
		s = as_status(::mwctl_revoke_start(ctx, ids, n, 0, static_cast<std::int32_t>(k), &queued_end, ctx));
		if (s == status::ok)
			return;
		for (std::size_t i = 0; i < n; i++)
			outs[i].status = MWCTL_STATUS_PENDING;
	}
	if (is_ended(s) && s != status::stale_id)
		return;
	for (std::size_t i = 0; i < n; i++) {
		// The whole call was refused where an item was not touched.
		status its = status_of(outs[i]);
		its = its == status::pending ? s : its;
		if (!is_ended(its) && its != status::duplicate)
			tell_unclosed(kind::grant, its, ids[i], ctx);
	}
}

// An array that says when there is no memory.
template <class T>
[[nodiscard]] std::unique_ptr<T[]> array(std::size_t n) noexcept
{
	static_assert(std::is_trivially_copyable_v<T>);
	return n > PTRDIFF_MAX / sizeof(T) ? nullptr : std::unique_ptr<T[]>(new (std::nothrow) T[n]());
}

// Fills in one of the C structs that go along with their size.
template <class T, class Get>
result<T> answer(Get get) noexcept
{
	T it{};
	status s = as_status(get(&it, sizeof(it)));
	return {result<void>(s), s == status::ok ? it : T{}};
}

// For calls that give a number.
template <class T, class Get>
result<T> number(Get get) noexcept
{
	T n{};
	status s = as_status(get(&n));
	return {result<void>(s), n};
}

} // namespace detail

class context;
class domain;
class region;
class block;
class peer;
class grant;
class grant_batch;
class chain;

// ---- grant ----

// One right of one client: an id and a key. ~grant takes it back, as chosen by grant_options::at_end.
class [[nodiscard]] grant {
public:
	grant() noexcept = default;
	grant(grant &&from) noexcept { swap(from); }
	grant &operator=(grant &&from) noexcept
	{
		grant(std::move(from)).swap(*this);
		return *this;
	}
	~grant() { finish(); }
	void swap(grant &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(asked_, other.asked_);
		std::swap(id_, other.id_);
		std::swap(rkey_, other.rkey_);
		std::swap(at_end_, other.at_end_);
		std::swap(kill_, other.kill_);
	}

	[[nodiscard]] explicit operator bool() const noexcept { return id_ != 0; }
	[[nodiscard]] std::uint64_t id() const noexcept { return id_; }
	// 0 where the client must not have it: the grant did not succeed.
	[[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
	// As the client sees it.
	[[nodiscard]] std::uint64_t addr() const noexcept { return asked_.addr; }
	[[nodiscard]] std::uint64_t length() const noexcept { return asked_.length; }
	[[nodiscard]] access rights() const noexcept { return static_cast<access>(asked_.access); }
	// What it was asked for with: change a copy for regrant and transfer.
	[[nodiscard]] const mwctl::request &request() const noexcept { return asked_; }
	[[nodiscard]] ending at_end() const noexcept { return at_end_; }
	void at_end(ending how) noexcept { at_end_ = how; }

	// Takes it back and says by what proof. The handle is empty after success and after STALE_ID
	// (it had ended: revoked by others, or given back by its client); otherwise the right may still
	// be usable, and the call can be repeated.
	// May wait.
	result<proof> revoke(timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		item out{};
		status s = detail::as_status(::mwctl_revoke_batch(link_.ctx(), &id_, 1, detail::us(t),
								  static_cast<std::int32_t>(k), &out));
		if (s == status::ok || s == status::stale_id)
			forget();
		return {result<void>(s, out.error), proof_of(out)};
	}
	// The same, ending in f(status, span<const item>). The handle keeps the right until it is known
	// to be gone; ~grant then waits for that, or not, as it was chosen.
	// Never waits.
	template <class F>
	result<void> revoke_start(F &&f, timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		return detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_revoke_start(link_.ctx(), &id_, 1, detail::us(t),
						    static_cast<std::int32_t>(k), fn, user);
		});
	}
	// Ends it and hands out its successor to the same client in one post. This handle is then
	// empty if the old right is gone, also where the new one failed.
	// May wait.
	result<grant> regrant(const mwctl::request &to, grant_options with = {}) noexcept
	{
		item out[2] = {};
		status s = detail::as_status(::mwctl_regrant(link_.ctx(), id_, &to, detail::us(with.timeout), out));
		return succeed(s, out[0], out[1], to, with);
	}
	// The same for another client: it gets the new right only after the proof that this one is gone.
	// May wait.
	result<grant> transfer(const mwctl::request &to, grant_options with = {}) noexcept
	{
		item out[2] = {};
		const ::mwctl_move step{id_, to};
		status s = detail::as_status(::mwctl_transfer(link_.ctx(), &step, 1, detail::us(with.timeout),
							      static_cast<std::int32_t>(with.kill), out));
		return succeed(s, out[1], out[0], to, with);
	}
	// How it stands.
	// Never waits.
	result<grant_info> info() const noexcept
	{
		return detail::answer<grant_info>([&](grant_info *it, std::size_t size) {
			return ::mwctl_grant_info_get(link_.ctx(), id_, it, size);
		});
	}

	// Gives the right away: nobody revokes it now.
	[[nodiscard]] std::uint64_t release() noexcept { return std::exchange(id_, 0); }
	// Takes over a right that has no other owner.
	// Never waits.
	static result<grant> adopt(const context &ctx, std::uint64_t id, ending at_end = ending::wait) noexcept;

private:
	friend class peer;
	friend class grant_batch;
	grant(const detail::link &link, const mwctl::request &asked, const item &it, grant_options with) noexcept
	    : link_(link), asked_(asked), id_(it.grant), rkey_(it.rkey), at_end_(with.at_end), kill_(with.kill)
	{
		if (!id_)
			*this = grant();
	}
	result<grant> succeed(status s, const item &old, const item &fresh, const mwctl::request &to,
			      grant_options with) noexcept
	{
		detail::link link = link_;
		// An item is zero where the call was refused as a whole.
		if (old.grant == id_ && status_of(old) == status::ok)
			forget();
		std::int32_t error = fresh.error ? fresh.error : old.error;
		return {result<void>(s, error), grant(link, to, fresh, with)};
	}
	void forget() noexcept
	{
		id_ = 0;
		*this = grant();
	}
	void finish() noexcept
	{
		item out{};
		if (id_)
			detail::end_grants(link_.ctx(), &id_, &out, 1, at_end_, kill_);
		id_ = 0;
	}

	detail::link link_;
	mwctl::request asked_{};
	std::uint64_t id_ = 0;
	std::uint32_t rkey_ = 0;
	ending at_end_ = ending::wait;
	kill kill_ = kill::allowed;
};

// ---- grant_batch ----

// One of a batch.
struct granted {
	std::uint64_t id; // 0: nothing is open
	std::uint32_t rkey;
	mwctl::status status; // of the grant, and then of its revocation
	mwctl::proof proof;
	std::uint64_t addr;
	std::uint64_t length;
	access rights;
};

// Many rights, of any number of clients, that end together: with one post for each client's share.
// It keeps the order of the requests, those that failed included.
class [[nodiscard]] grant_batch {
public:
	grant_batch() noexcept = default;
	grant_batch(grant_batch &&from) noexcept { swap(from); }
	grant_batch &operator=(grant_batch &&from) noexcept
	{
		grant_batch(std::move(from)).swap(*this);
		return *this;
	}
	~grant_batch() { finish(); }
	void swap(grant_batch &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(asked_, other.asked_);
		std::swap(items_, other.items_);
		std::swap(ids_, other.ids_);
		std::swap(outs_, other.outs_);
		std::swap(n_, other.n_);
		std::swap(room_, other.room_);
		std::swap(at_end_, other.at_end_);
		std::swap(kill_, other.kill_);
	}

	[[nodiscard]] std::size_t size() const noexcept { return n_; }
	[[nodiscard]] bool empty() const noexcept { return n_ == 0; }
	[[nodiscard]] std::size_t capacity() const noexcept { return room_; }
	// How many of them are open, as far as this handle knows.
	[[nodiscard]] std::size_t held() const noexcept
	{
		std::size_t n = 0;
		for (const item &it : items())
			n += it.grant != 0;
		return n;
	}
	// i < size().
	[[nodiscard]] granted operator[](std::size_t i) const noexcept
	{
		const item &it = items_[i];
		const request &asked = asked_[i];
		return {it.grant,   it.rkey,      status_of(it), proof_of(it),
			asked.addr, asked.length, static_cast<access>(asked.access)};
	}
	[[nodiscard]] span<const item> items() const noexcept { return {items_.get(), n_}; }
	[[nodiscard]] span<const request> requests() const noexcept { return {asked_.get(), n_}; }
	[[nodiscard]] ending at_end() const noexcept { return at_end_; }
	void at_end(ending how) noexcept { at_end_ = how; }

	class const_iterator {
	public:
		using iterator_category = std::input_iterator_tag;
		using value_type = granted;
		using difference_type = std::ptrdiff_t;
		using pointer = const granted *;
		using reference = granted;
		const_iterator() noexcept = default;
		const_iterator(const grant_batch *batch, std::size_t at) noexcept : batch_(batch), at_(at) {}
		granted operator*() const noexcept { return (*batch_)[at_]; }
		const_iterator &operator++() noexcept
		{
			at_++;
			return *this;
		}
		const_iterator operator++(int) noexcept
		{
			const_iterator before = *this;
			at_++;
			return before;
		}
		friend bool operator==(const const_iterator &a, const const_iterator &b) noexcept
		{
			return a.at_ == b.at_;
		}
		friend bool operator!=(const const_iterator &a, const const_iterator &b) noexcept { return !(a == b); }

	private:
		const grant_batch *batch_ = nullptr;
		std::size_t at_ = 0;
	};
	[[nodiscard]] const_iterator begin() const noexcept { return {this, 0}; }
	[[nodiscard]] const_iterator end() const noexcept { return {this, n_}; }

	result<void> reserve(std::size_t n) noexcept
	{
		if (n <= room_)
			return {};
		auto asked = detail::array<request>(n);
		auto items = detail::array<item>(n);
		auto ids = detail::array<std::uint64_t>(n);
		auto outs = detail::array<item>(n);
		if (!asked || !items || !ids || !outs)
			return status::no_memory;
		for (std::size_t i = 0; i < n_; i++) {
			asked[i] = asked_[i];
			items[i] = items_[i];
		}
		asked_ = std::move(asked);
		items_ = std::move(items);
		ids_ = std::move(ids);
		outs_ = std::move(outs);
		room_ = n;
		return {};
	}
	// Takes a right in, of the same context (FOREIGN_CONTEXT). On an error the caller keeps it. How
	// the batch ends does not change by it.
	result<void> add(grant &&right) noexcept
	{
		if (!right || !right.link_.ctx())
			return status::invalid_argument;
		if (link_.ctx() && link_.ctx() != right.link_.ctx())
			return status::foreign_context;
		if (n_ == room_) {
			result<void> grown = reserve(room_ < 8 ? 8 : 2 * room_);
			if (!grown)
				return grown;
		}
		if (!link_.ctx())
			link_ = right.link_;
		asked_[n_] = right.asked_;
		items_[n_] = item{right.id_, right.rkey_, MWCTL_STATUS_OK, MWCTL_PROOF_NONE, 0};
		n_++;
		right.forget();
		return {};
	}
	// Takes one out; its place stays, empty.
	grant take(std::size_t i) noexcept
	{
		if (i >= n_ || !items_[i].grant)
			return {};
		grant one(link_, asked_[i], items_[i], {default_timeout, at_end_, kill_});
		items_[i].grant = 0;
		items_[i].rkey = 0;
		return one;
	}

	// Takes all of them back. Each one's status and proof is in its place; those that are gone have
	// id 0 there, the others can be tried again. The first status that is no success.
	// May wait.
	result<void> revoke(timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		std::size_t n = gather();
		for (std::size_t i = 0; i < n; i++)
			outs_[i] = item{};
		status s = detail::as_status(::mwctl_revoke_batch(link_.ctx(), ids_.get(), n, detail::us(t),
								  static_cast<std::int32_t>(k), outs_.get()));
		return {s, settle(outs_.get(), n)};
	}
	// The same, ending in f(status, span<const item>). The batch keeps the rights until they are
	// known to be gone; it need not stay until then.
	// Never waits.
	template <class F>
	result<void> revoke_start(F &&f, timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		std::size_t n = gather();
		return detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_revoke_start(link_.ctx(), ids_.get(), n, detail::us(t),
						    static_cast<std::int32_t>(k), fn, user);
		});
	}
	// Moves them to other clients: to[i] in place of the ith. Each is handed out only after the proof
	// that its predecessor is gone. Every place must be open (INVALID_ARGUMENT).
	// May wait.
	result<grant_batch> transfer(span<const request> to, grant_options with = {}) noexcept
	{
		result<grant_batch> fresh = make(link_, to, with);
		std::unique_ptr<::mwctl_move[]> steps;
		if (!fresh)
			return fresh;
		result<void> ready = steps_to(to, steps);
		if (!ready)
			return {ready.code()};
		auto outs = detail::array<item>(2 * n_);
		if (!outs)
			return {status::no_memory};
		status s = detail::as_status(::mwctl_transfer(link_.ctx(), steps.get(), n_, detail::us(with.timeout),
							      static_cast<std::int32_t>(with.kill), outs.get()));
		std::int32_t error = fresh->fill(outs.get(), n_);
		std::int32_t of_old = settle(outs.get() + n_, n_);
		return {result<void>(s, error ? error : of_old), std::move(*fresh)};
	}
	// The same, ending in f(result<grant_batch> fresh, grant_batch old): the new rights, and this batch
	// with how its revocations ended. On an error nothing began and this batch is as it was.
	// Never waits.
	template <class F>
	result<void> transfer_start(span<const request> to, F &&f, grant_options with = {}) noexcept;

	// Gives all of them away, and is empty: nobody revokes them now.
	void release() noexcept
	{
		n_ = 0;
		*this = grant_batch();
	}

private:
	friend class context;
	friend class chain;

	static result<grant_batch> make(const detail::link &link, span<const request> asked, grant_options with) noexcept
	{
		grant_batch batch;
		result<void> ready = batch.reserve(asked.size());
		if (!ready)
			return {ready.code()};
		batch.link_ = link;
		batch.n_ = asked.size();
		batch.at_end_ = with.at_end;
		batch.kill_ = with.kill;
		for (std::size_t i = 0; i < batch.n_; i++) {
			batch.asked_[i] = asked[i];
			batch.items_[i].status = MWCTL_STATUS_NOT_POSTED;
		}
		return batch;
	}
	// Takes in how grants ended; the first errno of theirs.
	std::int32_t fill(const item *outs, std::size_t n) noexcept
	{
		std::int32_t error = 0;
		for (std::size_t i = 0; i < n && i < n_; i++) {
			items_[i] = outs[i];
			error = error ? error : outs[i].error;
		}
		return error;
	}
	// The ids of what is open, in order; how many.
	std::size_t gather() noexcept
	{
		std::size_t n = 0;
		for (std::size_t i = 0; i < n_; i++)
			if (items_[i].grant)
				ids_[n++] = items_[i].grant;
		return n;
	}
	// Takes in how the revocations of these ended; the first errno of theirs. One that is zero was not
	// touched.
	std::int32_t settle(const item *outs, std::size_t n) noexcept
	{
		std::int32_t error = 0;
		std::size_t at = 0;
		for (std::size_t i = 0; i < n_ && at < n; i++) {
			if (!items_[i].grant)
				continue;
			const item &out = outs[at++];
			error = error ? error : out.error;
			status s = status_of(out);
			if (out.grant != items_[i].grant)
				continue;
			items_[i].status = out.status;
			items_[i].proof = out.proof;
			items_[i].error = out.error;
			if (s == status::ok || s == status::stale_id) {
				items_[i].grant = 0;
				items_[i].rkey = 0;
			}
		}
		return error;
	}
	result<void> steps_to(span<const request> to, std::unique_ptr<::mwctl_move[]> &steps) const noexcept
	{
		if (to.size() != n_ || held() != n_)
			return status::invalid_argument;
		steps = detail::array<::mwctl_move>(n_);
		if (!steps)
			return status::no_memory;
		for (std::size_t i = 0; i < n_; i++)
			steps[i] = ::mwctl_move{items_[i].grant, to[i]};
		return {};
	}
	void finish() noexcept
	{
		if (link_.ctx())
			detail::end_grants(link_.ctx(), ids_.get(), outs_.get(), gather(), at_end_, kill_);
		n_ = 0;
	}

	detail::link link_;
	std::unique_ptr<request[]> asked_;
	std::unique_ptr<item[]> items_;
	std::unique_ptr<std::uint64_t[]> ids_; // room for the revocation, which must not fail for memory
	std::unique_ptr<item[]> outs_;
	std::size_t n_ = 0;
	std::size_t room_ = 0;
	ending at_end_ = ending::wait;
	kill kill_ = kill::allowed;
};

template <class F>
result<void> grant_batch::transfer_start(span<const request> to, F &&f, grant_options with) noexcept
{
	struct under_way {
		grant_batch fresh, old;
		std::decay_t<F> f;
	};
	std::unique_ptr<::mwctl_move[]> steps;
	result<grant_batch> fresh = make(link_, to, with);
	if (!fresh)
		return fresh.code();
	result<void> ready = steps_to(to, steps);
	if (!ready)
		return ready;
	std::unique_ptr<under_way> op(
	    new (std::nothrow) under_way{std::move(*fresh), grant_batch(), std::forward<F>(f)});
	if (!op)
		return status::no_memory;
	::mwctl_context *ctx = link_.ctx();
	std::size_t n = n_;
	// The callback may come on another thread before the call returns.
	op->old.swap(*this);
	status s = detail::as_status(::mwctl_transfer_start(
	    ctx, steps.get(), n, detail::us(with.timeout), static_cast<std::int32_t>(with.kill),
	    [](void *user, ::mwctl_status how, const item *outs, std::size_t results) noexcept {
		    std::unique_ptr<under_way> it(static_cast<under_way *>(user));
		    std::size_t half = results / 2;
		    std::int32_t error = it->fresh.fill(outs, half);
		    std::int32_t of_old = it->old.settle(outs + half, half);
		    it->f(result<grant_batch>(result<void>(detail::as_status(how), error ? error : of_old),
					      std::move(it->fresh)),
			  std::move(it->old));
	    },
	    op.get()));
	if (s == status::ok)
		(void)op.release();
	else
		op->old.swap(*this);
	return s;
}

// ---- chain ----

// Work requests of ours for the application to post with its own, between prepare and commit. ~chain
// aborts, which says that they were not posted and never will be: after a post there must be a
// commit, whatever the post returned. post() does both.
class [[nodiscard]] chain {
public:
	chain() noexcept = default;
	chain(chain &&from) noexcept { swap(from); }
	chain &operator=(chain &&from) noexcept
	{
		chain(std::move(from)).swap(*this);
		return *this;
	}
	~chain() { finish(); }
	void swap(chain &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(token_, other.token_);
		std::swap(wrs_, other.wrs_);
		std::swap(before_, other.before_);
		std::swap(told_, other.told_);
		grants_.swap(other.grants_);
	}

	// Not yet committed or aborted.
	[[nodiscard]] explicit operator bool() const noexcept { return token_.id != 0; }
	[[nodiscard]] ::mwctl_token native() const noexcept { return token_; }
	// Ours, in the caller's array, linked by next; the last one's next is for the caller to set.
	[[nodiscard]] span<ibv_send_wr> wrs() const noexcept { return wrs_; }
	// The rights that it hands out, with their keys; none for a revocation. Move them out after the
	// commit: what was posted is then open, the others have id 0 and NOT_POSTED.
	[[nodiscard]] grant_batch &grants() noexcept { return grants_; }
	[[nodiscard]] const grant_batch &grants() const noexcept { return grants_; }

	// What ibv_post_send returned and set. The number of our requests that count as posted.
	// Never waits.
	result<std::size_t> commit(int ret, const ibv_send_wr *bad_wr) noexcept
	{
		std::size_t posted = 0;
		told_ = true;
		status s = detail::as_status(::mwctl_commit(link_.ctx(), token_, ret, bad_wr, &posted));
		if (s == status::ok)
			settle(posted);
		return {result<void>(s), posted};
	}
	// Posts the chain that begins with `head` (NULL: with the first of ours) and commits. POST_FAILED
	// with what ibv_post_send returned in verbs_errno() if that failed: the value says how many of
	// ours were posted all the same.
	// Never waits.
	result<std::size_t> post(ibv_qp *qp, ibv_send_wr *head = nullptr) noexcept
	{
		ibv_send_wr *bad = nullptr;
		if (!token_.id || !link_.ctx() || wrs_.empty() || !qp)
			return status::invalid_argument;
		int ret = ::ibv_post_send(qp, head ? head : wrs_.data(), &bad);
		result<std::size_t> posted = commit(ret, bad);
		if (posted && ret != 0)
			return {result<void>(status::post_failed, ret), *posted};
		return posted;
	}
	// Puts all of ours into a batch of the extended interface, between ibv_wr_start and
	// ibv_wr_complete, on the thread that began it; commit_ex() after that, abort() after
	// ibv_wr_abort. No other call of the library on that thread meanwhile.
	// Never waits.
	void put(ibv_qp_ex *qp) const noexcept
	{
		if (token_.id && link_.ctx())
			::mwctl_put_wr(qp, wrs_.data(), wrs_.size());
	}
	// What ibv_wr_complete returned. As commit().
	// Never waits.
	result<std::size_t> commit_ex(int ret) noexcept
	{
		std::size_t posted = 0;
		told_ = true;
		status s = detail::as_status(::mwctl_commit_ex(link_.ctx(), token_, ret, &posted));
		if (s == status::ok)
			settle(posted);
		return {result<void>(s), posted};
	}
	// It was not posted and will not be.
	// Never waits.
	result<void> abort() noexcept
	{
		status s = detail::as_status(::mwctl_abort(link_.ctx(), token_));
		if (s == status::ok)
			settle(0);
		return s;
	}

private:
	friend class context;
	void settle(std::size_t posted) noexcept
	{
		token_.id = 0;
		for (std::size_t i = 0; i < grants_.n_; i++)
			if (posted <= i + before_)
				grants_.items_[i] = item{0, 0, MWCTL_STATUS_NOT_POSTED, MWCTL_PROOF_NEVER_BOUND, 0};
	}
	void finish() noexcept
	{
		::mwctl_context *ctx = link_.ctx();
		if (!token_.id || !ctx)
			return;
		// A commit that failed stands for a post that was made: to abort it would be a lie.
		status s = told_ ? status::pending : abort().code();
		if (!detail::is_ended(s))
			detail::tell_unclosed(kind::chain, s, token_.id, ctx);
		token_.id = 0;
	}

	grant_batch grants_;
	detail::link link_;
	::mwctl_token token_{0};
	span<ibv_send_wr> wrs_;
	std::size_t before_ = 0; // requests of ours before the first bind
	bool told_ = false;
};

// ---- peer ----

// An RC queue pair under management: one client. ~peer detaches, which revokes all that it holds and
// may wait: before ibv_destroy_qp.
class [[nodiscard]] peer {
public:
	peer() noexcept = default;
	peer(peer &&from) noexcept { swap(from); }
	peer &operator=(peer &&from) noexcept
	{
		peer(std::move(from)).swap(*this);
		return *this;
	}
	~peer()
	{
		::mwctl_context *ctx = link_.ctx();
		std::uint64_t id = id_.id;
		if (!id || !ctx)
			return;
		status s = detach().code();
		if (!detail::is_ended(s))
			detail::tell_unclosed(kind::peer, s, id, ctx);
	}
	void swap(peer &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(id_, other.id_);
		std::swap(domain_, other.domain_);
		std::swap(qp_num_, other.qp_num_);
	}

	[[nodiscard]] explicit operator bool() const noexcept { return id_.id != 0; }
	[[nodiscard]] ::mwctl_peer native() const noexcept { return id_; }
	[[nodiscard]] std::uint32_t qp_num() const noexcept { return qp_num_; }

	// A request for this client, for grants of many at a time.
	[[nodiscard]] request ask(const region &of, std::uint64_t addr, std::uint64_t length,
				  access rights) const noexcept;
	// The same for memory of this process that lies in the region.
	template <class T>
	[[nodiscard]] request ask(const region &of, span<T> memory, access rights) const noexcept;

	// Hands it one right, and returns once the bind has completed.
	// May wait.
	result<mwctl::grant> grant(const request &asked, grant_options with = {}) noexcept
	{
		item out{};
		request ours = asked;
		ours.peer = id_;
		status s = detail::as_status(::mwctl_grant(link_.ctx(), &ours, detail::us(with.timeout), &out));
		return {result<void>(s, out.error), mwctl::grant(link_, ours, out, with)};
	}
	result<mwctl::grant> grant(const region &of, std::uint64_t addr, std::uint64_t length, access rights,
				   grant_options with = {}) noexcept
	{
		return grant(ask(of, addr, length, rights), with);
	}
	template <class T>
	result<mwctl::grant> grant(const region &of, span<T> memory, access rights, grant_options with = {}) noexcept
	{
		return grant(ask(of, memory, rights), with);
	}

	// Takes back all that it holds; how many that were. The queue pair stays attached.
	// May wait.
	result<std::size_t> revoke_all(timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		return detail::number<std::size_t>([&](std::size_t *n) {
			return ::mwctl_revoke_peer(link_.ctx(), id_, detail::us(t), static_cast<std::int32_t>(k), n);
		});
	}
	// Never waits.
	template <class F>
	result<void> revoke_all_start(F &&f, timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		return detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_revoke_peer_start(link_.ctx(), id_, detail::us(t),
							 static_cast<std::int32_t>(k), fn, user);
		});
	}
	// Its send queue is stuck: revocations deallocate at once until a completion comes through.
	// Never waits.
	result<void> stuck() noexcept { return detail::as_status(::mwctl_peer_stuck(link_.ctx(), id_)); }

	// Revokes all that it holds and takes it off the books. Empty after success and STALE_ID.
	// May wait.
	result<void> detach(timeout t = default_timeout) noexcept
	{
		return off(::mwctl_peer_detach(link_.ctx(), id_, detail::us(t)));
	}
	// The same, ending in f(status, span<const item>). The handle stays: after success ~peer finds
	// nothing to do.
	// Never waits.
	template <class F>
	result<void> detach_start(F &&f, timeout t = default_timeout) noexcept
	{
		return detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_peer_detach_start(link_.ctx(), id_, detail::us(t), fn, user);
		});
	}
	// The queue pair no longer exists: it is never touched again.
	// May wait (a kernel call a window).
	result<void> gone(timeout t = default_timeout) noexcept
	{
		return off(::mwctl_peer_gone(link_.ctx(), id_, detail::us(t)));
	}

	// May it touch this range? The grant's id, or NO_GRANT.
	// Never waits.
	result<std::uint64_t> check(std::uint64_t addr, std::uint64_t length, access rights) const noexcept
	{
		return detail::number<std::uint64_t>([&](std::uint64_t *grant) {
			return ::mwctl_check(link_.ctx(), domain_, qp_num_, addr, length,
					     static_cast<std::uint32_t>(rights), grant);
		});
	}
	// Fills in the ids of its open grants as far as there is room; how many there are.
	// Never waits.
	result<std::size_t> grants(span<std::uint64_t> ids = {}) const noexcept
	{
		return detail::number<std::size_t>([&](std::size_t *n) {
			return ::mwctl_peer_grants(link_.ctx(), id_, ids.data(), ids.size(), n);
		});
	}
	// Never waits.
	result<peer_info> info() const noexcept
	{
		return detail::answer<peer_info>([&](peer_info *it, std::size_t size) {
			return ::mwctl_peer_info_get(link_.ctx(), id_, it, size);
		});
	}

	// Nobody detaches it now.
	[[nodiscard]] ::mwctl_peer release() noexcept { return std::exchange(id_, ::mwctl_peer{0}); }
	static result<peer> adopt(const domain &of, ::mwctl_peer id) noexcept;

private:
	friend class domain;
	result<void> off(::mwctl_status ended) noexcept
	{
		status s = detail::as_status(ended);
		if (s == status::ok || s == status::stale_id)
			id_.id = 0;
		return s;
	}

	detail::link link_;
	::mwctl_peer id_{0};
	::mwctl_domain domain_{0};
	std::uint32_t qp_num_ = 0;
};

// ---- region and block ----

// Neighbouring blocks that were taken of a region. ~block gives them back; where a right is still
// open they stay out of use until it is proved gone. Never waits.
class [[nodiscard]] block {
public:
	block() noexcept = default;
	block(block &&from) noexcept { swap(from); }
	block &operator=(block &&from) noexcept
	{
		block(std::move(from)).swap(*this);
		return *this;
	}
	~block()
	{
		::mwctl_context *ctx = link_.ctx();
		std::uint64_t addr = addr_;
		if (!count_ || !ctx)
			return;
		status s = give().code();
		if (!detail::is_ended(s))
			detail::tell_unclosed(kind::block, s, addr, ctx);
	}
	void swap(block &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(region_, other.region_);
		std::swap(addr_, other.addr_);
		std::swap(count_, other.count_);
		std::swap(bytes_, other.bytes_);
		std::swap(length_, other.length_);
	}

	[[nodiscard]] explicit operator bool() const noexcept { return count_ != 0; }
	// As clients see it.
	[[nodiscard]] std::uint64_t addr() const noexcept { return addr_; }
	[[nodiscard]] std::uint64_t length() const noexcept { return length_; }
	[[nodiscard]] std::size_t count() const noexcept { return count_; }
	// As this process sees it; empty for a device's memory.
	[[nodiscard]] span<std::byte> bytes() const noexcept { return bytes_; }

	result<void> give() noexcept
	{
		status s = detail::as_status(::mwctl_block_give(link_.ctx(), region_, addr_, count_));
		if (s == status::ok || s == status::stale_id)
			(void)release();
		return s;
	}
	// Nobody gives them back now. The first byte, as clients see it.
	[[nodiscard]] std::uint64_t release() noexcept
	{
		count_ = 0;
		length_ = 0;
		bytes_ = {};
		return std::exchange(addr_, 0);
	}

private:
	friend class region;
	detail::link link_;
	::mwctl_region region_{0};
	std::uint64_t addr_ = 0;
	std::uint64_t length_ = 0;
	std::size_t count_ = 0;
	span<std::byte> bytes_;
};

// A memory region under management. ~region detaches it: after success ibv_dereg_mr is safe, or done
// for memory of register_region. BUSY while a grant into it is open: then it stays registered.
class [[nodiscard]] region {
public:
	region() noexcept = default;
	region(region &&from) noexcept { swap(from); }
	region &operator=(region &&from) noexcept
	{
		region(std::move(from)).swap(*this);
		return *this;
	}
	~region()
	{
		::mwctl_context *ctx = link_.ctx();
		std::uint64_t id = id_.id;
		if (!id || !ctx)
			return;
		status s = detach().code();
		if (!detail::is_ended(s))
			detail::tell_unclosed(kind::region, s, id, ctx);
	}
	void swap(region &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(id_, other.id_);
		std::swap(addr_, other.addr_);
		std::swap(length_, other.length_);
		std::swap(block_size_, other.block_size_);
		std::swap(host_, other.host_);
	}

	[[nodiscard]] explicit operator bool() const noexcept { return id_.id != 0; }
	[[nodiscard]] ::mwctl_region native() const noexcept { return id_; }
	// As clients see it: the iova.
	[[nodiscard]] std::uint64_t addr() const noexcept { return addr_; }
	[[nodiscard]] std::uint64_t length() const noexcept { return length_; }
	[[nodiscard]] std::uint64_t block_size() const noexcept { return block_size_; }
	// As this process sees it; empty for a device's memory.
	[[nodiscard]] span<std::byte> bytes() const noexcept
	{
		return {host_, host_ ? static_cast<std::size_t>(length_) : 0};
	}
	// Where clients see memory of this process; nothing if it does not lie in the region.
	[[nodiscard]] std::optional<std::uint64_t> addr_of(const void *memory) const noexcept
	{
		auto at = reinterpret_cast<std::uintptr_t>(memory), first = reinterpret_cast<std::uintptr_t>(host_);
		if (!host_ || at < first || at - first >= length_)
			return std::nullopt;
		return addr_ + (at - first);
	}

	// Takes `count` neighbouring blocks in which no right is open or uncertain.
	// Never waits.
	result<block> take_blocks(std::size_t count) noexcept
	{
		block taken;
		status s = detail::as_status(::mwctl_block_take(link_.ctx(), id_, count, &taken.addr_));
		if (s != status::ok)
			return s;
		taken.link_ = link_;
		taken.region_ = id_;
		taken.count_ = count;
		taken.length_ = count * block_size_;
		taken.bytes_ = bytes().subspan(static_cast<std::size_t>(taken.addr_ - addr_),
					       static_cast<std::size_t>(taken.length_));
		return taken;
	}
	// Takes back every right of any client that touches the range; how many that were.
	// May wait.
	result<std::size_t> revoke(std::uint64_t addr, std::uint64_t length, timeout t = default_timeout,
				   kill k = kill::allowed) noexcept
	{
		return detail::number<std::size_t>([&](std::size_t *n) {
			return ::mwctl_revoke_range(link_.ctx(), id_, addr, length, detail::us(t),
						    static_cast<std::int32_t>(k), n);
		});
	}
	// Never waits.
	template <class F>
	result<void> revoke_start(std::uint64_t addr, std::uint64_t length, F &&f, timeout t = default_timeout,
				  kill k = kill::allowed) noexcept
	{
		return detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_revoke_range_start(link_.ctx(), id_, addr, length, detail::us(t),
							  static_cast<std::int32_t>(k), fn, user);
		});
	}
	// Fills in the ids of the open grants that touch the range; how many there are.
	// Never waits.
	result<std::size_t> grants(std::uint64_t addr, std::uint64_t length,
				   span<std::uint64_t> ids = {}) const noexcept
	{
		return detail::number<std::size_t>([&](std::size_t *n) {
			return ::mwctl_range_grants(link_.ctx(), id_, addr, length, ids.data(), ids.size(), n);
		});
	}
	// Never waits.
	result<region_info> info() const noexcept
	{
		return detail::answer<region_info>([&](region_info *it, std::size_t size) {
			return ::mwctl_region_info_get(link_.ctx(), id_, it, size);
		});
	}
	// Ends its management. Empty after success and STALE_ID.
	// May wait (deregistering is a kernel call).
	result<void> detach() noexcept
	{
		status s = detail::as_status(::mwctl_region_detach(link_.ctx(), id_));
		if (s == status::ok || s == status::stale_id) {
			id_.id = 0;
			host_ = nullptr;
		}
		return s;
	}
	// Nobody detaches it now.
	[[nodiscard]] ::mwctl_region release() noexcept { return std::exchange(id_, ::mwctl_region{0}); }
	static result<region> adopt(const domain &of, ::mwctl_region id) noexcept;

private:
	friend class domain;
	result<void> look(bool is_host) noexcept
	{
		result<region_info> seen = info();
		if (seen) {
			addr_ = seen->addr;
			length_ = seen->length;
			block_size_ = seen->block_size;
			host_ = is_host && seen->mr ? static_cast<std::byte *>(seen->mr->addr) : nullptr;
		}
		return seen.code();
	}

	detail::link link_;
	::mwctl_region id_{0};
	std::uint64_t addr_ = 0;
	std::uint64_t length_ = 0;
	std::uint64_t block_size_ = 0;
	std::byte *host_ = nullptr;
};

inline request peer::ask(const region &of, std::uint64_t addr, std::uint64_t length, access rights) const noexcept
{
	request asked{};
	asked.peer = id_;
	asked.region = of.native();
	asked.addr = addr;
	asked.length = length;
	asked.access = static_cast<std::uint32_t>(rights);
	return asked;
}

template <class T>
request peer::ask(const region &of, span<T> memory, access rights) const noexcept
{
	std::optional<std::uint64_t> addr = of.addr_of(memory.data());
	// No range ends at the last address: memory from elsewhere is refused with OUT_OF_RANGE.
	return ask(of, addr ? *addr : UINT64_MAX, memory.size_bytes(), rights);
}

// ---- domain ----

// A protection domain under management, with its pool of windows. ~domain closes it: BUSY while a peer
// or region of it is attached.
class [[nodiscard]] domain {
public:
	domain() noexcept = default;
	domain(domain &&from) noexcept { swap(from); }
	domain &operator=(domain &&from) noexcept
	{
		domain(std::move(from)).swap(*this);
		return *this;
	}
	~domain()
	{
		::mwctl_context *ctx = link_.ctx();
		std::uint64_t id = id_.id;
		if (!id || !ctx)
			return;
		status s = close().code();
		if (!detail::is_ended(s))
			detail::tell_unclosed(kind::domain, s, id, ctx);
	}
	void swap(domain &other) noexcept
	{
		std::swap(link_, other.link_);
		std::swap(id_, other.id_);
	}

	[[nodiscard]] explicit operator bool() const noexcept { return id_.id != 0; }
	[[nodiscard]] ::mwctl_domain native() const noexcept { return id_; }

	// Zeroed memory with no remote access of its own.
	// May wait (registering pins the memory).
	result<region> register_region(std::uint64_t length, const register_options &with = {}) noexcept
	{
		region made;
		status s = detail::as_status(
		    ::mwctl_region_register(link_.ctx(), id_, length, &with, sizeof(with), &made.id_));
		return opened(s, std::move(made), true);
	}
	// The application's region, with the iova and the access flags that it was registered with.
	// Never waits.
	result<region> attach_region(ibv_mr *mr, const attach_options &with) noexcept
	{
		region made;
		status s = detail::as_status(
		    ::mwctl_region_attach(link_.ctx(), id_, mr, &with, sizeof(with), &made.id_));
		return opened(s, std::move(made), with.device_memory == 0);
	}
	// An RC queue pair in any state from INIT to RTS; grants need RTS.
	// May wait (queries the queue pair).
	result<peer> attach_peer(ibv_qp *qp, const peer_options &with = {}) noexcept
	{
		peer made;
		status s = detail::as_status(::mwctl_peer_attach(link_.ctx(), id_, qp, &with, sizeof(with), &made.id_));
		if (s != status::ok)
			return s;
		made.link_ = link_;
		made.domain_ = id_;
		made.qp_num_ = qp->qp_num;
		return made;
	}

	// Has so many windows ready for the next grants.
	// May wait (a kernel call a window).
	result<void> reserve(std::uint32_t windows) noexcept
	{
		return detail::as_status(::mwctl_domain_reserve(link_.ctx(), id_, windows));
	}
	// May the client behind this queue pair touch this range? The grant's id, or NO_GRANT.
	// Never waits.
	result<std::uint64_t> check(std::uint32_t qp_num, std::uint64_t addr, std::uint64_t length,
				    access rights) const noexcept
	{
		return detail::number<std::uint64_t>([&](std::uint64_t *grant) {
			return ::mwctl_check(link_.ctx(), id_, qp_num, addr, length,
					     static_cast<std::uint32_t>(rights), grant);
		});
	}
	// Fills in the ids of its open grants, which are in the way of close(); how many there are.
	// Never waits.
	result<std::size_t> grants(span<std::uint64_t> ids = {}) const noexcept
	{
		return detail::number<std::size_t>([&](std::size_t *n) {
			return ::mwctl_domain_grants(link_.ctx(), id_, ids.data(), ids.size(), n);
		});
	}
	// Never waits.
	result<domain_info> info() const noexcept
	{
		return detail::answer<domain_info>([&](domain_info *it, std::size_t size) {
			return ::mwctl_domain_info_get(link_.ctx(), id_, it, size);
		});
	}
	// Ends its management. Empty after success and STALE_ID.
	// May wait (a kernel call a window).
	result<void> close() noexcept
	{
		status s = detail::as_status(::mwctl_domain_close(link_.ctx(), id_));
		if (s == status::ok || s == status::stale_id)
			id_.id = 0;
		return s;
	}
	// Nobody closes it now.
	[[nodiscard]] ::mwctl_domain release() noexcept { return std::exchange(id_, ::mwctl_domain{0}); }
	static result<domain> adopt(const context &ctx, ::mwctl_domain id) noexcept;

private:
	friend class context;
	friend class region;
	friend class peer;
	result<region> opened(status s, region made, bool is_host) const noexcept
	{
		if (s != status::ok)
			return s;
		made.link_ = link_;
		result<void> seen = made.look(is_host);
		if (!seen)
			return seen.code();
		return made;
	}

	detail::link link_;
	::mwctl_domain id_{0};
};

inline result<region> region::adopt(const domain &of, ::mwctl_region id) noexcept
{
	region made;
	made.link_ = of.link_;
	made.id_ = id;
	result<void> seen = made.look(true);
	if (!seen) {
		made.id_.id = 0;
		return seen.code();
	}
	return made;
}

inline result<peer> peer::adopt(const domain &of, ::mwctl_peer id) noexcept
{
	peer made;
	made.link_ = of.link_;
	made.id_ = id;
	made.domain_ = of.id_;
	result<peer_info> seen = made.info();
	if (!seen) {
		made.id_.id = 0;
		return seen.code();
	}
	made.qp_num_ = seen->qp_num;
	return made;
}

// ---- context ----

// A device context under management. ~context closes it: BUSY while a domain is open.
class [[nodiscard]] context {
public:
	context() noexcept = default;
	context(context &&from) noexcept { swap(from); }
	context &operator=(context &&from) noexcept
	{
		context(std::move(from)).swap(*this);
		return *this;
	}
	~context()
	{
		::mwctl_context *ctx = link_.ctx();
		if (!ctx)
			return;
		status s = close().code();
		if (!detail::is_ended(s))
			detail::tell_unclosed(kind::context, s, 0, ctx);
	}
	void swap(context &other) noexcept { std::swap(link_, other.link_); }

	// May wait (a few kernel calls).
	static result<context> open(ibv_context *device, const context_options &with = {}) noexcept
	{
		::mwctl_context *raw = nullptr;
		auto shared = std::unique_ptr<detail::core>(new (std::nothrow) detail::core);
		if (!shared)
			return status::no_memory;
		status s = detail::as_status(
		    ::mwctl_context_open(device, &with.native(), sizeof(with.native()), &raw));
		if (s != status::ok)
			return s;
		return own(std::move(shared), raw);
	}
	// Takes over a context that has no other owner. Handles from before don't hear of its close(): they
	// must be gone by then.
	static result<context> adopt(::mwctl_context *raw) noexcept
	{
		auto shared = std::unique_ptr<detail::core>(new (std::nothrow) detail::core);
		if (!raw || !shared)
			return raw ? status::no_memory : status::invalid_argument;
		return own(std::move(shared), raw);
	}
	[[nodiscard]] explicit operator bool() const noexcept { return link_.ctx() != nullptr; }
	[[nodiscard]] ::mwctl_context *native() const noexcept { return link_.ctx(); }
	// Nobody closes it now. Its handles go on working: they must be gone before it is closed.
	[[nodiscard]] ::mwctl_context *release() noexcept
	{
		::mwctl_context *raw = link_.ctx();
		link_ = detail::link();
		return raw;
	}
	// Ends the management. No other call on the context may be under way. Empty after success; its
	// handles' calls are then refused with INVALID_ARGUMENT.
	// Never waits.
	result<void> close() noexcept
	{
		::mwctl_context *raw = link_.ctx();
		if (!raw)
			return status::invalid_argument;
		status s = detail::as_status(::mwctl_context_close(raw));
		if (s == status::ok) {
			link_.closed();
			link_ = detail::link();
		}
		return s;
	}

	// Takes a protection domain under management and fills its pool.
	// May wait (a kernel call a window).
	result<domain> open_domain(ibv_pd *pd, const domain_options &with = {}) noexcept
	{
		domain made;
		status s = detail::as_status(::mwctl_domain_open(link_.ctx(), pd, &with, sizeof(with), &made.id_));
		if (s != status::ok)
			return s;
		made.link_ = link_;
		return made;
	}

	// Hands out many rights, to any number of clients. After an error the batch holds those that went
	// well, and they go with it.
	// May wait.
	result<grant_batch> grant(span<const request> asked, grant_options with = {}) noexcept
	{
		result<grant_batch> batch = grant_batch::make(link_, asked, with);
		if (!batch)
			return batch;
		grant_batch &it = *batch;
		status s = detail::as_status(::mwctl_grant_batch(link_.ctx(), asked.data(), asked.size(),
								 detail::us(with.timeout), it.items_.get()));
		std::int32_t error = 0;
		for (const item &one : it.items())
			error = error ? error : one.error;
		return {result<void>(s, error), std::move(it)};
	}
	// The same, ending in f(result<grant_batch>).
	// Never waits.
	template <class F>
	result<void> grant_start(span<const request> asked, F &&f, grant_options with = {}) noexcept
	{
		struct under_way {
			grant_batch batch;
			std::decay_t<F> f;
		};
		result<grant_batch> batch = grant_batch::make(link_, asked, with);
		if (!batch)
			return batch.code();
		std::unique_ptr<under_way> op(new (std::nothrow) under_way{std::move(*batch), std::forward<F>(f)});
		if (!op)
			return status::no_memory;
		status s = detail::as_status(::mwctl_grant_start(
		    link_.ctx(), asked.data(), asked.size(), detail::us(with.timeout),
		    [](void *user, ::mwctl_status how, const item *outs, std::size_t n) noexcept {
			    std::unique_ptr<under_way> it(static_cast<under_way *>(user));
			    std::int32_t error = it->batch.fill(outs, n);
			    it->f(result<grant_batch>(result<void>(detail::as_status(how), error),
						      std::move(it->batch)));
		    },
		    op.get()));
		if (s == status::ok)
			(void)op.release();
		return s;
	}
	// Takes rights back by their ids; `outs` is empty or has a place for each (INVALID_ARGUMENT).
	// Handles of the same rights find them gone.
	// May wait.
	result<void> revoke(span<const std::uint64_t> ids, span<item> outs = {}, timeout t = default_timeout,
			    kill k = kill::allowed) noexcept
	{
		if (!outs.empty() && outs.size() != ids.size())
			return status::invalid_argument;
		return detail::as_status(::mwctl_revoke_batch(link_.ctx(), ids.data(), ids.size(), detail::us(t),
							      static_cast<std::int32_t>(k), outs.data()));
	}
	// Never waits.
	template <class F>
	result<void> revoke_start(span<const std::uint64_t> ids, F &&f, timeout t = default_timeout,
				  kill k = kill::allowed) noexcept
	{
		return detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_revoke_start(link_.ctx(), ids.data(), ids.size(), detail::us(t),
						    static_cast<std::int32_t>(k), fn, user);
		});
	}

	// Binds for the application to post itself, for one client. `wrs` has a place for each request
	// (INVALID_ARGUMENT), and stays in place until commit or abort. A key may travel in a later SEND
	// of the same chain and in no other way before the grant is confirmed.
	// Never waits.
	result<chain> prepare_grants(span<const request> asked, span<ibv_send_wr> wrs, grant_options with = {}) noexcept
	{
		result<grant_batch> batch = grant_batch::make(link_, asked, with);
		if (!batch)
			return batch.code();
		if (wrs.size() < asked.size())
			return status::invalid_argument;
		chain made;
		status s = detail::as_status(::mwctl_grant_prepare(link_.ctx(), asked.data(), asked.size(), wrs.data(),
								   batch->items_.get(), &made.token_));
		if (s != status::ok) {
			batch->release();
			return s;
		}
		return prepared(std::move(made), wrs.subspan(0, asked.size()), std::move(*batch), 0);
	}
	// LOCAL_INVs for grants of one client. f(status, span<const item>) hears of the proof after the
	// commit, or of NOT_POSTED after an abort.
	// Never waits.
	template <class F>
	result<chain> prepare_revocation(span<const std::uint64_t> ids, span<ibv_send_wr> wrs, F &&f,
					 timeout t = default_timeout, kill k = kill::allowed) noexcept
	{
		if (wrs.size() < ids.size())
			return status::invalid_argument;
		chain made;
		result<void> begun = detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_revoke_prepare(link_.ctx(), ids.data(), ids.size(), detail::us(t),
						      static_cast<std::int32_t>(k), fn, user, wrs.data(),
						      &made.token_);
		});
		if (!begun)
			return begun.code();
		return prepared(std::move(made), wrs.subspan(0, ids.size()), grant_batch(), 0);
	}
	// A LOCAL_INV for a grant and a bind for its successor to the same client: two of `wrs`. f hears of
	// the old one's proof; its handle stays, and finds it gone then.
	// Never waits.
	template <class F>
	result<chain> prepare_regrant(const mwctl::grant &old, const request &to, span<ibv_send_wr> wrs, F &&f,
				      grant_options with = {}) noexcept
	{
		result<grant_batch> batch = grant_batch::make(link_, span<const request>(&to, 1), with);
		if (!batch)
			return batch.code();
		if (wrs.size() < 2)
			return status::invalid_argument;
		chain made;
		result<void> begun = detail::start(std::forward<F>(f), [&](auto fn, void *user) {
			return ::mwctl_regrant_prepare(link_.ctx(), old.id(), &to, detail::us(with.timeout), fn, user,
						       wrs.data(), batch->items_.get(), &made.token_);
		});
		if (!begun) {
			batch->release();
			return begun.code();
		}
		return prepared(std::move(made), wrs.subspan(0, 2), std::move(*batch), 1);
	}

	// Stands in for ibv_poll_cq, with its results.
	// Never waits.
	[[nodiscard]] int poll_cq(ibv_cq *cq, span<ibv_wc> wc) noexcept
	{
		constexpr std::size_t most = 0x7fffffff;
		return ::mwctl_poll_cq(link_.ctx(), cq, static_cast<int>(wc.size() < most ? wc.size() : most),
				       wc.data());
	}
	// Offers a completion that the application polled: true if it was ours. After an error, too, it is the
	// application's.
	// Never waits.
	result<bool> take_wc(ibv_cq *cq, const ibv_wc &wc) noexcept
	{
		int taken = ::mwctl_take_wc(link_.ctx(), cq, &wc);
		if (taken < 0)
			return static_cast<status>(-taken);
		return taken != 0;
	}
	// The same for the completion that ibv_start_poll or ibv_next_poll shows, before ibv_end_poll. What
	// follows from it is done by the next tick().
	// Never waits.
	result<bool> take_ex(ibv_cq_ex *cq) noexcept
	{
		int taken = ::mwctl_take_ex(link_.ctx(), cq);
		if (taken < 0)
			return static_cast<status>(-taken);
		return taken != 0;
	}
	// Never waits.
	result<void> cq_gone(ibv_cq *cq) noexcept { return detail::as_status(::mwctl_cq_gone(link_.ctx(), cq)); }
	result<void> cq_empty(ibv_cq *cq) noexcept { return detail::as_status(::mwctl_cq_empty(link_.ctx(), cq)); }
	result<void> take_async_event(const ibv_async_event &it) noexcept
	{
		return detail::as_status(::mwctl_take_async_event(link_.ctx(), &it));
	}

	// A descriptor for poll or epoll; it belongs to the context. -1 on an error.
	[[nodiscard]] int event_fd() const noexcept { return ::mwctl_event_fd(link_.ctx()); }
	// Until tick() is due; nothing if nothing is planned.
	[[nodiscard]] std::optional<std::chrono::nanoseconds> next_timeout() const noexcept
	{
		std::int64_t ns = link_.ctx() ? ::mwctl_next_timeout(link_.ctx()) : -1;
		return ns < 0 ? std::nullopt : std::optional<std::chrono::nanoseconds>(ns);
	}
	// Does what is due: deallocations, deadlines, refills of the pools, callbacks.
	result<void> tick() noexcept { return detail::as_status(::mwctl_tick(link_.ctx())); }
	// A thread that ticks.
	result<void> service_start() noexcept { return detail::as_status(::mwctl_service_start(link_.ctx())); }
	// May wait.
	result<void> service_stop() noexcept { return detail::as_status(::mwctl_service_stop(link_.ctx())); }

	// Never waits.
	result<mwctl::capabilities> capabilities() const noexcept
	{
		return detail::answer<mwctl::capabilities>([&](mwctl::capabilities *it, std::size_t size) {
			return ::mwctl_capabilities_get(link_.ctx(), it, size);
		});
	}
	result<statistics> stats() const noexcept
	{
		return detail::answer<statistics>([&](statistics *it, std::size_t size) {
			return ::mwctl_stats_get(link_.ctx(), it, size);
		});
	}
	// The open grant whose rkey this is, or NO_GRANT.
	result<grant_info> find_rkey(std::uint32_t rkey) const noexcept
	{
		return detail::answer<grant_info>([&](grant_info *it, std::size_t size) {
			return ::mwctl_find_rkey(link_.ctx(), rkey, it, size);
		});
	}
	// What a key is: kind_of() and text() of it for the log.
	result<key_info> explain_key(std::uint32_t key) const noexcept
	{
		return detail::answer<key_info>([&](key_info *it, std::size_t size) {
			return ::mwctl_explain_key(link_.ctx(), key, it, size);
		});
	}
	// A grant by its id, or STALE_ID.
	result<grant_info> find_grant(std::uint64_t id) const noexcept
	{
		return detail::answer<grant_info>([&](grant_info *it, std::size_t size) {
			return ::mwctl_grant_info_get(link_.ctx(), id, it, size);
		});
	}

private:
	friend class domain;
	friend class mwctl::grant;
	static context own(std::unique_ptr<detail::core> shared, ::mwctl_context *raw) noexcept
	{
		context made;
		shared->ctx.store(raw, std::memory_order_release);
		made.link_ = detail::link(shared.release());
		return made;
	}
	chain prepared(chain made, span<ibv_send_wr> wrs, grant_batch batch, std::size_t before) const noexcept
	{
		made.link_ = link_;
		made.wrs_ = wrs;
		made.grants_ = std::move(batch);
		made.before_ = before;
		return made;
	}

	detail::link link_;
};

inline result<domain> domain::adopt(const context &ctx, ::mwctl_domain id) noexcept
{
	domain made;
	made.link_ = ctx.link_;
	made.id_ = id;
	result<domain_info> seen = made.info();
	if (!seen) {
		made.id_.id = 0;
		return seen.code();
	}
	return made;
}

inline result<grant> grant::adopt(const context &ctx, std::uint64_t id, ending at_end) noexcept
{
	result<grant_info> seen = ctx.find_grant(id);
	if (!seen)
		return seen.code();
	mwctl::request asked{};
	asked.peer = seen->peer;
	asked.addr = seen->addr;
	asked.length = seen->length;
	asked.access = seen->access;
	item it{id, seen->rkey, MWCTL_STATUS_OK, MWCTL_PROOF_NONE, 0};
	return grant(ctx.link_, asked, it, {default_timeout, at_end, kill::allowed});
}

// ---- exceptions, for those who ask ----

#if defined(__cpp_exceptions)
namespace throwing {

class failure : public std::system_error {
public:
	explicit failure(const result<void> &how) : std::system_error(how.error()), errno_(how.verbs_errno()) {}
	[[nodiscard]] status which() const noexcept { return static_cast<status>(code().value()); }
	[[nodiscard]] std::int32_t verbs_errno() const noexcept { return errno_; }

private:
	std::int32_t errno_;
};

// The value, or a failure thrown. Rights that a failed result holds go with it:
//   auto right = or_throw(client.grant(region, memory, access::write));
template <class T, class = std::enable_if_t<!std::is_void_v<T>>>
[[nodiscard]] T or_throw(result<T> &&how)
{
	if (!how)
		throw failure(how);
	return std::move(*how);
}
inline void or_throw(const result<void> &how)
{
	if (!how)
		throw failure(how);
}

} // namespace throwing
#endif

} // namespace mwctl

#endif // MWCTL_HPP
