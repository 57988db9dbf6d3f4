// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {Actors} from "./Actors.sol";

/// @title Base of most tests: the token, a market for it, and actors with 10,000 FLN each.
abstract contract MarketTest is Actors {
    function setUp() public virtual {
        vm.warp(START);
        bytes memory arguments = abi.encode(address(this), SUPPLY);
        deployMarket(IERC20(vm.deployCode("FlorinToken.sol:FlorinToken", arguments)));
    }
}
