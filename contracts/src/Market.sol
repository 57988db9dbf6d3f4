// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Bonds} from "./market/Bonds.sol";
import {Claims} from "./market/Claims.sol";
import {MarketStorage} from "./market/MarketStorage.sol";
import {Splits} from "./market/Splits.sol";
import {Stakes} from "./market/Stakes.sol";
import {Tasks} from "./market/Tasks.sol";

/// @title Market: escrow of tasks, payouts by Merkle proof.
/// @notice Contents: `MarketStorage` is the storage, `Tasks` opens and closes tasks, `Settlements`
/// (with `SettlementChain`) posts, cancels and finalises settlements, `Claims` pays, `Splits`
/// divides pay among members, `Bonds` and `Stakes` hold collateral. `IMarket` documents all
/// functions. There is no owner, no proxy and no pause.
contract Market is Tasks, Claims, Splits, Bonds, Stakes {
    /// @param token_ a plain ERC-20; it cannot be changed.
    constructor(IERC20 token_) MarketStorage(token_) EIP712("Florin", "1") {}
}
