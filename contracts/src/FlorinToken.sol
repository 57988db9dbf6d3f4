// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title Florin token: ERC-20 with permit (ERC-2612) and a fixed supply.
/// @notice There is no minting after deployment, no clawback and no way to stop a transfer.
contract FlorinToken is ERC20, ERC20Permit {
    /// @notice The supply exceeds the range of the market's amounts.
    error SupplyTooLarge(uint256 supply, uint256 largest);

    /// @param holder receives the whole supply.
    /// @param supply in base units; 10^18 of them are one florin.
    constructor(address holder, uint256 supply) ERC20("Florin", "FLN") ERC20Permit("Florin") {
        if (supply > type(uint128).max) revert SupplyTooLarge(supply, type(uint128).max);
        _mint(holder, supply);
    }
}
