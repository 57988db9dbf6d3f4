// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

/// @title The forge cheat codes that these tests use.
interface Vm {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function addr(uint256 key) external pure returns (address);
    function assume(bool condition) external pure;
    function chainId(uint256 id) external;
    function deployCode(string calldata path, bytes calldata arguments) external returns (address);
    function deployCode(string calldata path) external returns (address);
    function expectEmit() external;
    function expectRevert(bytes calldata revertData) external;
    function expectRevert(bytes4 selector) external;
    function expectPartialRevert(bytes4 selector) external;
    function getRecordedLogs() external returns (Log[] memory);
    function lastCallGas() external view returns (Gas memory);
    function label(address account, string calldata name) external;
    function prank(address sender) external;
    function recordLogs() external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function snapshotState() external returns (uint256);
    function revertToState(uint256 id) external returns (bool);
    function startPrank(address sender) external;
    function stopPrank() external;
    function toString(uint256 value) external pure returns (string memory);
    function warp(uint256 timestamp) external;
    function writeFile(string calldata path, string calldata data) external;
    function assertEq(uint256 a, uint256 b, string calldata message) external pure;
    function assertEq(bytes32 a, bytes32 b, string calldata message) external pure;
    function assertEq(address a, address b, string calldata message) external pure;
    function assertEq(bytes calldata a, bytes calldata b, string calldata message) external pure;
    function assertLe(uint256 a, uint256 b, string calldata message) external pure;
    function assertTrue(bool value, string calldata message) external pure;
    function assertFalse(bool value, string calldata message) external pure;
}
