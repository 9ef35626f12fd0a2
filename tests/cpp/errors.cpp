// SPDX-License-Identifier: MIT OR Apache-2.0
// Error codes, results, exceptions, spans: what needs no device, and the throwing form with one.
#include "house.hpp"

#include <array>
#if __cplusplus >= 202002L
#include <span>
#endif

using mwctl::status;

// What the types promise.
template <class T>
constexpr bool is_handle = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
			   std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
			   std::is_nothrow_default_constructible_v<T> && std::is_nothrow_destructible_v<T> &&
			   !std::is_convertible_v<T, bool>;
static_assert(is_handle<mwctl::context> && is_handle<mwctl::domain> && is_handle<mwctl::region> &&
	      is_handle<mwctl::block> && is_handle<mwctl::peer> && is_handle<mwctl::grant> &&
	      is_handle<mwctl::chain>);
static_assert(std::is_nothrow_move_constructible_v<mwctl::grant_batch> &&
	      !std::is_copy_constructible_v<mwctl::grant_batch>);
static_assert(std::is_error_code_enum_v<status>);
static_assert(noexcept(std::declval<mwctl::grant &>().revoke()));
static_assert(noexcept(std::declval<mwctl::peer &>().grant(mwctl::request{})));
static_assert(noexcept(mwctl::context::open(nullptr)));
static_assert(noexcept(std::declval<mwctl::context &>().close()));

static void codes()
{
	std::error_code ec = status::timed_out;

	RC_CHECK(ec && ec == status::timed_out && ec != status::open);
	RC_CHECK(ec == std::errc::timed_out && ec != std::errc::io_error);
	RC_CHECK_EQ(MWCTL_STATUS_TIMED_OUT, ec.value());
	RC_CHECK(ec.category() == mwctl::category());
	RC_CHECK(std::string("mwctl") == ec.category().name());
	RC_CHECK(ec.message() == mwctl_status_text(MWCTL_STATUS_TIMED_OUT));
	RC_CHECK(!std::error_code(status::ok));
	RC_CHECK(std::error_code(status::no_memory) == std::errc::not_enough_memory);
	RC_CHECK(std::error_code(status::queue_full) == std::errc::resource_unavailable_try_again);
	RC_CHECK(std::error_code(status::would_deadlock) == std::errc::resource_deadlock_would_occur);
	RC_CHECK(std::error_code(status::unsupported) == std::errc::not_supported);
	RC_CHECK(std::error_code(status::busy) == std::errc::device_or_resource_busy);
	RC_CHECK(std::error_code(status::length_zero) == std::errc::invalid_argument);
	// No like among errno's: it equals itself alone.
	ec = status::stale_id;
	RC_CHECK(ec.default_error_condition().category() == mwctl::category());
	RC_CHECK(ec != std::errc::invalid_argument);
	RC_CHECK(!std::error_code(static_cast<status>(123456)).message().empty());
	RC_CHECK(std::string(mwctl::text(mwctl::proof::invalidated)) == mwctl_proof_text(MWCTL_PROOF_INVALIDATED));
	RC_CHECK_EQ(MWCTL_VERSION, mwctl::version());

	mwctl::result<int> seven(7), none(status::no_grant);
	RC_CHECK(seven && *seven == 7 && !seven.error());
	RC_CHECK(!none && *none == 0 && none.error() == status::no_grant);
	mwctl::result<void> verbs(status::verbs_error, 12);
	RC_CHECK(!verbs && verbs.verbs_errno() == 12 && verbs.error() == std::errc::io_error);
	ok("error codes compare with statuses and with errno's likes");
}

static std::size_t sum(mwctl::span<const int> numbers)
{
	std::size_t total = 0;
	for (int it : numbers)
		total += static_cast<std::size_t>(it);
	return total;
}
static std::size_t count(mwctl::span<int> numbers)
{
	return numbers.size();
}

static void spans()
{
	int plain[3] = {1, 2, 3};
	std::vector<int> vector = {4, 5};
	const std::vector<int> fixed = {6};
	std::array<int, 2> array = {{7, 8}};
	const std::array<int, 1> fixed_array = {{9}};

	RC_CHECK_EQ(6, sum(plain));
	RC_CHECK_EQ(9, sum(vector));
	RC_CHECK_EQ(6, sum(fixed));
	RC_CHECK_EQ(15, sum(array));
	RC_CHECK_EQ(9, sum(fixed_array));
	RC_CHECK_EQ(3, sum(std::vector<int>{1, 2}));
	RC_CHECK_EQ(0, sum({}));
	RC_CHECK_EQ(3, count(plain));
	RC_CHECK_EQ(2, count(vector));
	RC_CHECK_EQ(6, sum(mwctl::span(plain)));
	RC_CHECK_EQ(9, sum(mwctl::span<int>(vector)));
	static_assert(!std::is_convertible_v<const std::vector<int> &, mwctl::span<int>>);
	static_assert(!std::is_convertible_v<std::vector<int>, mwctl::span<int>>);
	static_assert(!std::is_convertible_v<std::vector<long> &, mwctl::span<const int>>);
	static_assert(std::is_trivially_copyable_v<mwctl::span<int>>);
	mwctl::span<int> part = mwctl::span<int>(plain).subspan(1);
	RC_CHECK(part.size() == 2 && part[0] == 2 && part.size_bytes() == 2 * sizeof(int));
	RC_CHECK_EQ(1, part.subspan(1, 9).size());
	RC_CHECK(part.subspan(5).empty());
	part[0] = 20;
	RC_CHECK_EQ(20, plain[1]);
#if __cplusplus >= 202002L
	std::span<int> theirs = part;
	RC_CHECK(theirs.data() == part.data() && theirs.size() == 2);
	RC_CHECK_EQ(23, sum(theirs));
	RC_CHECK_EQ(23, sum(std::span<const int>(theirs)));
	std::span<const int> back = mwctl::span<const int>(part);
	RC_CHECK_EQ(2, back.size());
	static_assert(std::ranges::contiguous_range<mwctl::span<int>> && std::ranges::view<mwctl::span<int>>);
#endif
	ok("spans take every container, and std::span where there is one");
}

#if defined(__cpp_exceptions)
static void exceptions()
{
	using mwctl::throwing::failure;
	using mwctl::throwing::or_throw;
	house h;
	mwctl::grant right = or_throw(h.peer(0).grant(h.ask(0, 0, 4096)));
	std::uint32_t key = right.rkey();
	int thrown = 0;

	LANDS(h, 0, 0, key, 0x11);
	RC_CHECK(or_throw(h.peer(0).check(right.addr(), 64, mwctl::access::write)) == right.id());
	try {
		mwctl::grant none = or_throw(h.peer(0).grant(h.ask(0, 0, 0)));
		RC_FAIL("nothing was thrown");
	} catch (const failure &it) {
		thrown++;
		RC_CHECK(it.which() == status::length_zero);
		RC_CHECK(it.code() == std::errc::invalid_argument);
	}
	try {
		or_throw(h.ctx.close());
		RC_FAIL("nothing was thrown");
	} catch (const std::system_error &it) {
		thrown++;
		RC_CHECK(it.code() == status::busy);
		RC_CHECK(std::string(it.what()).find(mwctl_status_text(MWCTL_STATUS_BUSY)) != std::string::npos);
	}
	// Unwinding takes rights back as any end of a scope does.
	try {
		mwctl::grant inner = std::move(right);
		or_throw(h.ctx.close());
	} catch (const failure &) {
		thrown++;
	}
	RC_CHECK_EQ(3, thrown);
	RC_CHECK_EQ(0, *h.domain.grants());
	or_throw(h.ctx.tick());
	REFUSED(h, 0, 0, key, 0x12);
	h.rejoin(0);
	ok("or_throw gives the value or a std::system_error");
}
#endif

static void sizes()
{
	ibv_qp_cap both{}, alone{};
	int cqe = 0, cqe_alone = 0;

	OK(mwctl::size_queues(7, both, cqe));
	OK(mwctl::size_queues(7, alone));
	OK(mwctl::size_queues(7, cqe_alone));
	RC_CHECK_EQ(7, both.max_send_wr);
	RC_CHECK_EQ(7, alone.max_send_wr);
	RC_CHECK_EQ(cqe, cqe_alone);
	rc_ok("queues are sized together or alone");
}

int main()
{
	codes();
	sizes();
	spans();
#if defined(__cpp_exceptions)
	exceptions();
#endif
	return 0;
}
