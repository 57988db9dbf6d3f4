// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20Permit} from
    "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title Florin token: fixed supply, and permits that work only once and only on this chain.
contract TokenTest is MarketTest {
    uint256 private constant ORDER =
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
    bytes32 private constant PERMIT = keccak256(
        "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)"
    );

    function permitted(uint256 value) private view returns (uint8 v, bytes32 r, bytes32 s) {
        IERC20Permit permit = IERC20Permit(address(token));
        bytes32 fields = keccak256(
            abi.encode(PERMIT, buyer, stranger, value, permit.nonces(buyer), block.timestamp)
        );
        bytes memory typed = abi.encodePacked(hex"1901", permit.DOMAIN_SEPARATOR(), fields);
        return vm.sign(BUYER_KEY, keccak256(typed));
    }

    function test_the_supply_is_fixed() external view {
        vm.assertEq(token.totalSupply(), SUPPLY, "supply");
    }

    function test_a_supply_beyond_128_bits_is_refused() external {
        bytes memory arguments = abi.encode(address(this), uint256(1) << 128);
        (bool made,) =
            address(this).call(abi.encodeCall(this.deploy, (arguments)));
        vm.assertFalse(made, "2^128");
        arguments = abi.encode(address(this), type(uint128).max);
        this.deploy(arguments);
    }

    function deploy(bytes calldata arguments) external returns (address) {
        return vm.deployCode("FlorinToken.sol:FlorinToken", arguments);
    }

    function test_a_permit_works_once() external {
        IERC20Permit permit = IERC20Permit(address(token));
        (uint8 v, bytes32 r, bytes32 s) = permitted(5);
        permit.permit(buyer, stranger, 5, block.timestamp, v, r, s);
        vm.assertEq(token.allowance(buyer, stranger), 5, "allowed");
        vm.expectPartialRevert(ERC20Permit.ERC2612InvalidSigner.selector);
        permit.permit(buyer, stranger, 5, block.timestamp, v, r, s);
    }

    function test_a_permit_with_a_high_s_or_too_late_or_for_another_chain_is_refused() external {
        IERC20Permit permit = IERC20Permit(address(token));
        (uint8 v, bytes32 r, bytes32 s) = permitted(5);
        bytes32 high = bytes32(ORDER - uint256(s));
        expectError(abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureS.selector, high));
        permit.permit(buyer, stranger, 5, block.timestamp, v == 27 ? 28 : 27, r, high);
        uint256 deadline = block.timestamp;
        vm.warp(deadline + 1);
        expectError(abi.encodeWithSelector(ERC20Permit.ERC2612ExpiredSignature.selector, deadline));
        permit.permit(buyer, stranger, 5, deadline, v, r, s);
        vm.warp(deadline);
        vm.chainId(4_242);
        vm.expectPartialRevert(ERC20Permit.ERC2612InvalidSigner.selector);
        permit.permit(buyer, stranger, 5, deadline, v, r, s);
    }
}
