// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IRegistry} from "../src/interfaces/IRegistry.sol";
import {MarketTest} from "./MarketTest.sol";

/// @title Binding node keys to wallets.
contract RegistryTest is MarketTest {
    uint256 private constant ORDER =
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
    bytes32 private constant KEY = keccak256("an ed25519 key");
    bytes32 private constant ROLE = "participant";

    IRegistry private registry;
    bytes private proof = new bytes(64);
    uint64 private deadline = START * 1_000 + 60_000;

    function setUp() public override {
        super.setUp();
        registry = IRegistry(vm.deployCode("Registry.sol:Registry"));
    }

    function signed(bytes32 role) private view returns (bytes memory) {
        bytes32 digest = registry.digest(buyer, KEY, role, deadline);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(BUYER_KEY, digest);
        return abi.encodePacked(r, s, v);
    }

    function test_a_wallet_binds_one_key_for_each_role() external {
        vm.startPrank(ada);
        registry.bind(KEY, ROLE, deadline, proof);
        registry.bind("other", "provider", deadline, proof);
        vm.assertEq(registry.keyOf(ada, ROLE), KEY, "participant");
        vm.assertEq(registry.keyOf(ada, "provider"), "other", "provider");
        registry.bind("newer", ROLE, deadline, proof);
        vm.assertEq(registry.keyOf(ada, ROLE), "newer", "replaced");
    }

    function test_a_squatter_cannot_block_a_binding() external {
        vm.prank(stranger);
        registry.bind(KEY, ROLE, deadline, proof);
        vm.prank(ada);
        registry.bind(KEY, ROLE, deadline, proof);
        vm.assertEq(registry.keyOf(ada, ROLE), KEY, "the owner's binding is unchanged");
    }

    function test_a_revocation_invalidates_outstanding_signatures() external {
        bytes memory signature = signed(ROLE);
        registry.bindFor(buyer, KEY, ROLE, deadline, signature, proof);
        bytes memory next = signed(ROLE);
        vm.prank(buyer);
        registry.revoke(ROLE);
        vm.assertEq(registry.keyOf(buyer, ROLE), 0, "revoked");
        expectError(abi.encodeWithSelector(IRegistry.InvalidSignature.selector));
        registry.bindFor(buyer, KEY, ROLE, deadline, signature, proof);
        expectError(abi.encodeWithSelector(IRegistry.InvalidSignature.selector));
        registry.bindFor(buyer, KEY, ROLE, deadline, next, proof);
        vm.expectPartialRevert(IRegistry.NotFound.selector);
        vm.prank(buyer);
        registry.revoke(ROLE);
    }

    function test_a_signature_over_other_fields_is_refused() external {
        bytes memory signature = signed(ROLE);
        bytes memory bad = abi.encodeWithSelector(IRegistry.InvalidSignature.selector);
        expectError(bad);
        registry.bindFor(ada, KEY, ROLE, deadline, signature, proof);
        expectError(bad);
        registry.bindFor(buyer, "other", ROLE, deadline, signature, proof);
        expectError(bad);
        registry.bindFor(buyer, KEY, "provider", deadline, signature, proof);
        expectError(bad);
        registry.bindFor(buyer, KEY, ROLE, deadline + 1, signature, proof);
        IRegistry other = IRegistry(vm.deployCode("Registry.sol:Registry"));
        expectError(bad);
        other.bindFor(buyer, KEY, ROLE, deadline, signature, proof);
        vm.chainId(4_242);
        expectError(bad);
        registry.bindFor(buyer, KEY, ROLE, deadline, signature, proof);
    }

    function test_a_high_s_is_refused() external {
        bytes32 digest = registry.digest(buyer, KEY, ROLE, deadline);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(BUYER_KEY, digest);
        bytes32 high = bytes32(ORDER - uint256(s));
        bytes memory signature = abi.encodePacked(r, high, v == 27 ? uint8(28) : uint8(27));
        expectError(abi.encodeWithSelector(IRegistry.InvalidSignature.selector));
        registry.bindFor(buyer, KEY, ROLE, deadline, signature, proof);
    }

    function test_a_zero_key_a_short_signature_or_a_passed_deadline_is_refused() external {
        vm.expectPartialRevert(IRegistry.InvalidArgument.selector);
        registry.bind(0, ROLE, deadline, proof);
        vm.expectPartialRevert(IRegistry.InvalidArgument.selector);
        registry.bind(KEY, ROLE, deadline, new bytes(63));
        vm.warp(deadline / 1_000 + 1);
        expectError(abi.encodeWithSelector(IRegistry.WindowClosed.selector, deadline));
        registry.bind(KEY, ROLE, deadline, proof);
    }
}
