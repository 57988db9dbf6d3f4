// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Bonds} from "./market/Bonds.sol";
import {Books} from "./market/Books.sol";
import {Claims} from "./market/Claims.sol";
import {Stakes} from "./market/Stakes.sol";
import {Tasks} from "./market/Tasks.sol";

/// @title The market: tasks in escrow, paid by proof.
/// @notice Table of contents: `Books` is what is stored, `Tasks` opens and closes, `Settlements` (with `History`)
/// posts, cancels and finalises, `Claims` pays, `Bonds` and `Stakes` hold what is at risk. Everything is explained in
/// `IMarket`. There is no owner, no proxy and no way to pause.
contract Market is Tasks, Claims, Bonds, Stakes {
    /// @param token_ a plain ERC-20; it cannot be changed.
    constructor(IERC20 token_) Books(token_) EIP712("Florin", "1") {}
}
