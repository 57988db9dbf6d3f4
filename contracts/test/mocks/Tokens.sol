// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// @title Nonstandard tokens.
abstract contract TestToken is ERC20 {
    constructor() ERC20("Test token", "TEST") {
        _mint(msg.sender, 1_000_000e18);
    }
}

/// @notice Charges one per cent of every transfer as a fee.
contract FeeToken is TestToken {
    function _update(address from, address to, uint256 value) internal override {
        if (from == address(0)) return super._update(from, to, value);
        super._update(from, address(0xFEE), value / 100);
        super._update(from, to, value - value / 100);
    }
}

/// @notice Fails by returning false, without moving funds.
contract FalseToken is TestToken {
    bool public failing;

    function startFailing() external {
        failing = true;
    }

    function transfer(address to, uint256 value) public override returns (bool) {
        return !failing && super.transfer(to, value);
    }

    function transferFrom(address from, address to, uint256 value) public override returns (bool) {
        return !failing && super.transferFrom(from, to, value);
    }
}

/// @notice Returns no value, as some old tokens do.
contract NoReturnToken {
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;

    constructor() {
        balanceOf[msg.sender] = 1_000_000e18;
    }

    function approve(address spender, uint256 value) external {
        allowance[msg.sender][spender] = value;
    }

    function transfer(address to, uint256 value) external {
        balanceOf[msg.sender] -= value;
        balanceOf[to] += value;
    }

    function transferFrom(address from, address to, uint256 value) external {
        allowance[from][msg.sender] -= value;
        balanceOf[from] -= value;
        balanceOf[to] += value;
    }
}

/// @notice Calls a contract before and after it moves funds, like ERC-777; if `skip` is set, the
/// first transfer moves nothing.
contract HookToken is TestToken {
    address public before;
    address public afterwards;
    bytes public call;
    bool public skip;
    bool public succeeded;
    bytes public answer;
    bool private _inside;

    function setHooks(address before_, address afterwards_, bytes calldata call_, bool skip_)
        external
    {
        (before, afterwards, call, skip) = (before_, afterwards_, call_, skip_);
    }

    function _update(address from, address to, uint256 value) internal override {
        bool first = !_inside && (before != address(0) || afterwards != address(0));
        if (!first) return super._update(from, to, value);
        _inside = true;
        if (before != address(0)) (succeeded, answer) = before.call(call);
        if (!skip) super._update(from, to, value);
        if (afterwards != address(0)) (succeeded, answer) = afterwards.call(call);
        _inside = false;
    }
}

/// @notice An account that executes arbitrary calls, so that a hook can act in its name.
contract CallForwarder {
    error CallFailed(bytes reason);

    function forward(address target, bytes calldata data) external {
        (bool done, bytes memory reason) = target.call(data);
        if (!done) revert CallFailed(reason);
    }
}
