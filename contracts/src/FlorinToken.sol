// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title Florin, the token: ERC-20 with permit (ERC-2612), made once.
/// @notice Nobody can make more, take any back, or stop a transfer.
contract FlorinToken is ERC20, ERC20Permit {
    /// @notice More than amounts of the market can count.
    error SupplyTooLarge(uint256 supply, uint256 largest);

    /// @param holder who receives all of it.
    /// @param supply in base units; 10^18 of them are one florin.
    constructor(address holder, uint256 supply) ERC20("Florin", "FLN") ERC20Permit("Florin") {
        if (supply > type(uint128).max) revert SupplyTooLarge(supply, type(uint128).max);
        _mint(holder, supply);
    }
}
