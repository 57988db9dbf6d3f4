// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// @title Nonstandard tokens.
abstract contract Strange is ERC20 {
    constructor() ERC20("Strange", "???") {
        _mint(msg.sender, 1_000_000e18);
    }
}

/// @notice Charges one per cent of every transfer as a fee.
contract FeeToken is Strange {
    function _update(address from, address to, uint256 value) internal override {
        if (from == address(0)) return super._update(from, to, value);
        super._update(from, address(0xFEE), value / 100);
        super._update(from, to, value - value / 100);
    }
}

/// @notice Fails by returning false, without moving funds.
contract FalseToken is Strange {
    bool public honest = true;

    function lie() external {
        honest = false;
    }

    function transfer(address to, uint256 value) public override returns (bool) {
        return honest && super.transfer(to, value);
    }

    function transferFrom(address from, address to, uint256 value) public override returns (bool) {
        return honest && super.transferFrom(from, to, value);
    }
}

/// @notice Returns no value, as some old tokens do.
contract SilentToken {
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
contract HookToken is Strange {
    address public before;
    address public afterwards;
    bytes public call;
    bool public skip;
    bool public succeeded;
    bytes public answer;
    bool private _inside;

    function plant(address before_, address afterwards_, bytes calldata call_, bool skip_)
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
contract Puppet {
    function act(address target, bytes calldata data) external {
        (bool done, bytes memory why) = target.call(data);
        if (!done) revert Refused(why);
    }

    error Refused(bytes why);
}
