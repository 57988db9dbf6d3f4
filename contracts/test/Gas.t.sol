// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {Claim, Settlement, Standing} from "../src/interfaces/Types.sol";
import {Tree} from "./Tree.sol";
import {World} from "./World.sol";

/// @title What the hot paths cost, as a transaction of their own: 21,000, the calldata, and cold storage.
contract GasTest is World {
    /// forge-config: default.isolate = true
    function test_probe() external {
        open();
        Claim memory c;
        for (uint32 round = 1; round <= 6; ++round) {
            bytes32 leaf = Tree.leaf(ada, round * FLN / 3, 0);
            (bytes32 root, bytes32[] memory proof) = Tree.path(leaf, 10);
            Settlement memory s = settlement(round, root, 10 * round * FLN / 3, round * FLN/7);
            Standing memory standing = last(TASK);
            bytes32 before = market.task(TASK).head;
            uint256 gas = cost(coordinator, address(market), abi.encodeCall(market.post, (s, standing)));
            remember(s, before);
            emit log_named_uint("post", gas);
            pass(WINDOW + 1000);
            gas = cost(coordinator, address(market), abi.encodeCall(market.finalize, (TASK, pending())));
            emit log_named_uint("finalize", gas);
            c = Claim(TASK, address(0xfade), round * FLN / 3, 0, proof);
            c.account = ada;
            gas = cost(coordinator, address(market), claimCall(c));
            emit log_named_uint("claim", gas);
        }
    }
    event log_named_uint(string key, uint256 val);

    function cost(address from, address to, bytes memory data) internal returns (uint256 gas) {
        vm.prank(from);
        (bool ok, ) = to.call(data);
        require(ok);
        gas = vm.lastCallGas().gasTotalUsed;
    }
}
