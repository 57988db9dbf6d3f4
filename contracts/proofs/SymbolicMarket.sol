// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {FlorinToken} from "../src/FlorinToken.sol";
import {Market} from "../src/Market.sol";
import {IMarket} from "../src/interfaces/IMarket.sol";
import {Collateral, PostedSettlement, TaskState} from "../src/interfaces/Types.sol";

/// @title The cheat codes that halmos supports.
interface HalmosCheats {
    function assume(bool condition) external pure;
    function prank(address sender) external;
    function warp(uint256 timestamp) external;
    function setArbitraryStorage(address account) external;
    function load(address account, bytes32 slot) external view returns (bytes32);
}

/// @title The constructor of symbolic bytes that halmos supports.
interface SymbolicBytes {
    function createBytes(uint256 length, string calldata name) external returns (bytes memory);
}

/// @title Base of the proofs: the market and its token as deployed, with symbolic storage.
/// @dev halmos runs each `check_` function with symbolic arguments, symbolic storage of both
/// contracts and a symbolic clock, and searches for values that violate an `assert`. A proof holds
/// under its assumptions: `taskInvariant` and `tokenInvariant`, which the proofs and the token
/// preserve, and a clock below the year 36,812.
abstract contract SymbolicMarket {
    HalmosCheats internal constant vm =
        HalmosCheats(address(uint160(uint256(keccak256("hevm cheat code")))));

    SymbolicBytes internal constant svm =
        SymbolicBytes(address(uint160(uint256(keccak256("svm cheat code")))));

    uint256 internal constant SUPPLY = 1e27;
    uint256 internal constant SECONDS_MAX = 2 ** 40;
    /// The slot of the market's accounts: `forge inspect Market storageLayout`.
    uint256 private constant ACCOUNTS_SLOT = 2;

    IERC20 internal token;
    IMarket internal market;

    function setUp() public {
        token = new FlorinToken(address(this), SUPPLY);
        market = new Market(token);
        vm.setArbitraryStorage(address(token));
        vm.setArbitraryStorage(address(market));
    }

    function at(uint256 second) internal {
        vm.assume(second < SECONDS_MAX);
        vm.warp(second);
    }

    /// @dev Invariant of an opened task's state and of one account in it: each proof of a function
    /// that writes them shows that the function preserves it. `claimed` is the account's total pay
    /// so far.
    function taskInvariant(TaskState memory t, uint128 claimed) internal pure returns (bool) {
        uint256 deposit = uint256(t.terms.data) + t.terms.infrastructure;
        uint256 posted = uint256(t.dataPaid) + t.infrastructurePaid;
        return t.head != 0 && deposit <= type(uint96).max && t.dataPaid <= t.terms.data
            && t.infrastructurePaid <= t.terms.infrastructure
            && uint256(claimed) + t.owed <= posted;
    }

    /// @dev The members of an account's split in a task: the last 32 bits of its claimed totals. The getter
    /// of a split with any length would not prove them.
    function membersOf(bytes32 id, address account) internal view returns (uint256) {
        bytes32 inTask = keccak256(abi.encode(id, ACCOUNTS_SLOT));
        bytes32 totals = vm.load(address(market), keccak256(abi.encode(account, inTask)));
        return uint256(totals) >> 224;
    }

    function hasNoSplit(bytes32 id, address account) internal view returns (bool) {
        return membersOf(id, account) == 0;
    }

    /// @dev Invariant of FlorinToken: the balances of two holders do not exceed the supply.
    function tokenInvariant(address one, address other) internal view returns (bool) {
        (uint256 a, uint256 b) = (token.balanceOf(one), token.balanceOf(other));
        return one != other && a <= SUPPLY && b <= SUPPLY && a + b <= SUPPLY;
    }

    /// @dev The cover is what is final plus the coordinator's bond, at most 2^96 - 1.
    function isCoverExact(bytes32 id, address coordinator) internal view returns (bool) {
        TaskState memory t = market.task(id);
        Collateral memory b = market.bondOf(id, coordinator);
        uint256 covered = uint256(t.dataPaid) + t.infrastructurePaid;
        if (b.release == 0) covered += b.amount;
        return market.coveredOf(id) == (covered < type(uint96).max ? covered : type(uint96).max);
    }

    function same(TaskState memory a, TaskState memory b) internal pure returns (bool) {
        return keccak256(abi.encode(a)) == keccak256(abi.encode(b));
    }

    function only(PostedSettlement memory s)
        internal
        pure
        returns (PostedSettlement[] memory list)
    {
        list = new PostedSettlement[](1);
        list[0] = s;
    }
}
