// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {FlorinToken} from "../src/FlorinToken.sol";
import {Market} from "../src/Market.sol";
import {IMarket} from "../src/interfaces/IMarket.sol";
import {PostedSettlement, TaskState} from "../src/interfaces/Types.sol";

/// @title The cheat codes that halmos knows, too.
interface Cheats {
    function assume(bool condition) external pure;
    function prank(address sender) external;
    function warp(uint256 timestamp) external;
    function setArbitraryStorage(address account) external;
}

/// @title Where every proof begins: the market and its token as they are deployed, with any books whatever.
/// @dev halmos runs each `check_` function with unknown arguments, unknown storage of both contracts and an unknown
/// clock, and looks for values that make an `assert` fail. What is assumed is what a proof does not cover: `wellKept`
/// and `wellMinted`, which the proofs and the token uphold, and a clock below the year 36,812.
abstract contract Anything {
    Cheats internal constant vm = Cheats(address(uint160(uint256(keccak256("hevm cheat code")))));

    uint256 internal constant SUPPLY = 1e27;
    uint256 internal constant SECONDS_MAX = 2 ** 40;

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

    /// @dev What the books of an open or closed task and of one account in it satisfy after every call: each proof of
    /// a function that writes them shows that they still do. `claimed` is what the account was paid so far.
    function wellKept(TaskState memory t, uint128 claimed) internal pure returns (bool) {
        uint256 deposit = uint256(t.terms.data) + t.terms.infrastructure;
        uint256 posted = uint256(t.dataPaid) + t.infrastructurePaid;
        return t.head != 0 && deposit <= type(uint96).max && t.dataPaid <= t.terms.data
            && t.infrastructurePaid <= t.terms.infrastructure
            && uint256(claimed) + t.owed <= posted;
    }

    /// @dev What FlorinToken guarantees: two holders have no more than there is.
    function wellMinted(address one, address other) internal view returns (bool) {
        (uint256 a, uint256 b) = (token.balanceOf(one), token.balanceOf(other));
        return one != other && a <= SUPPLY && b <= SUPPLY && a + b <= SUPPLY;
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
