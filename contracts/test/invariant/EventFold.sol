// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IMarketEvents} from "../../src/interfaces/IMarketEvents.sol";
import {MemberShare, PostedSettlement, TaskState, Terms} from "../../src/interfaces/Types.sol";
import {SettlementChain} from "../../src/market/SettlementChain.sol";
import {Vm} from "../Vm.sol";

/// @title The market's state, rebuilt from its events only.
/// @dev The off-chain implementation of a client. It reads only logs.
contract EventFold {
    /// The data of the event `SettlementPosted`.
    struct PostedData {
        bytes32 report;
        bytes32 root;
        uint128 dataTotal;
        uint128 scorePayTotal;
        uint128 infrastructureTotal;
        uint64 improvementTotalNano;
        uint64 finalAt;
    }

    mapping(bytes32 => TaskState) private _tasks;
    mapping(bytes32 => PostedSettlement[]) private _activeSettlements;
    mapping(bytes32 => uint256) private _finalCounts;
    mapping(bytes32 => mapping(address => uint128)) public paid;
    mapping(bytes32 => mapping(address => uint128)) public debited;
    mapping(bytes32 => mapping(address => uint128)) public bonds;
    mapping(bytes32 => mapping(address => uint64)) public bondReleases;
    mapping(address => uint128) public stakes;
    mapping(address => uint64) public stakeReleases;
    mapping(bytes32 => mapping(address => bool)) public pledged;
    mapping(bytes32 => mapping(address => uint128)) public slashedOf;
    mapping(bytes32 => mapping(address => uint128)) public slashedBondOf;
    mapping(address => bytes32[]) private _everPledged;
    mapping(bytes32 => mapping(address => bytes)) public splits;
    uint128 public treasury;

    function task(bytes32 id) external view returns (TaskState memory) {
        return _tasks[id];
    }

    function apply_(Vm.Log calldata log) external {
        bytes32 kind = log.topics[0];
        if (kind == IMarketEvents.TaskOpened.selector) _opened(log);
        else if (kind == IMarketEvents.TaskSettled.selector) _settled(log);
        else if (kind == IMarketEvents.SettlementPosted.selector) _posted(log);
        else if (kind == IMarketEvents.HeadCheckpointed.selector) _checkpointed(log);
        else if (kind == IMarketEvents.SettlementsCancelled.selector) _cancelled(log);
        else if (kind == IMarketEvents.SettlementFinalised.selector) _finalised(log);
        else if (kind == IMarketEvents.Claimed.selector) _claimed(log);
        else if (kind == IMarketEvents.Debited.selector) _debited(log);
        else if (kind == IMarketEvents.SplitSet.selector) _split(log);
        else if (kind == IMarketEvents.Slashed.selector) _slashed(log);
        else if (kind == IMarketEvents.CloseAnnounced.selector) _announced(log);
        else if (kind == IMarketEvents.CloseObjected.selector) _objected(log);
        else if (!_bond(kind, log)) _stake(kind, log);
    }

    function _whom(Vm.Log calldata log) private pure returns (address) {
        return address(uint160(uint256(log.topics[2])));
    }

    function _opened(Vm.Log calldata log) private {
        Terms memory terms = abi.decode(log.data, (Terms));
        TaskState storage t = _tasks[terms.task];
        t.terms = terms;
        t.dataLocked = terms.data;
        t.infrastructureLocked = terms.infrastructure;
        bytes32 initialHash = SettlementChain.initialHash();
        (t.head, t.finalHead, t.checkpoint) = (initialHash, initialHash, initialHash);
    }

    function _settled(Vm.Log calldata log) private {
        TaskState storage t = _tasks[log.topics[1]];
        t.refunded = abi.decode(log.data, (uint128));
        (t.dataLocked, t.infrastructureLocked, t.closed) = (0, 0, true);
        t.closesAt = 0;
    }

    function _announced(Vm.Log calldata log) private {
        TaskState storage t = _tasks[log.topics[1]];
        uint64 closesAt = abi.decode(log.data, (uint64));
        // A settlement that was posted in the same second withdraws it.
        t.closesAt = t.lastPost + t.terms.challengeMs < closesAt ? closesAt : 0;
    }

    function _objected(Vm.Log calldata log) private {
        bytes32 id = log.topics[1];
        TaskState storage t = _tasks[id];
        (, uint128 taken) = abi.decode(log.data, (uint64, uint128));
        t.closesAt = 0;
        bonds[id][t.terms.coordinator] -= taken;
        treasury += taken;
    }

    function _posted(Vm.Log calldata log) private {
        bytes32 id = log.topics[1];
        TaskState storage t = _tasks[id];
        PostedSettlement memory s;
        s.round = uint32(uint256(log.topics[2]));
        PostedData memory data = abi.decode(log.data, (PostedData));
        (s.report, s.root, s.dataTotal) = (data.report, data.root, data.dataTotal);
        (s.scorePayTotal, s.infrastructureTotal) = (data.scorePayTotal, data.infrastructureTotal);
        (s.improvementTotalNano, s.finalAt) = (data.improvementTotalNano, data.finalAt);
        t.lastPost = s.finalAt - t.terms.challengeMs;
        t.closesAt = 0;
        t.pending += 1;
        _activeSettlements[id].push(s);
        t.head = _next(t.head, s);
    }

    function _checkpointed(Vm.Log calldata log) private {
        _tasks[log.topics[1]].checkpoint = abi.decode(log.data, (bytes32));
    }

    function _next(bytes32 before, PostedSettlement memory s) private pure returns (bytes32) {
        bytes32 inner = SettlementChain.innerHash(
            before, s.report, s.scorePayTotal, s.improvementTotalNano, s.finalAt
        );
        return SettlementChain.entry(inner, s.round, s.root, s.dataTotal, s.infrastructureTotal);
    }

    function _cancelled(Vm.Log calldata log) private {
        bytes32 id = log.topics[1];
        TaskState storage t = _tasks[id];
        PostedSettlement[] storage list = _activeSettlements[id];
        while (list.length > 0 && list[list.length - 1].round >= uint256(log.topics[2])) {
            list.pop();
            t.pending -= 1;
        }
        t.head = t.finalHead;
        bool valid = t.checkpoint == t.head;
        for (uint256 i = _finalCounts[id]; i < list.length; ++i) {
            t.head = _next(t.head, list[i]);
            valid = valid || t.checkpoint == t.head;
        }
        if (!valid) t.checkpoint = t.head;
    }

    function _finalised(Vm.Log calldata log) private {
        bytes32 id = log.topics[1];
        TaskState storage t = _tasks[id];
        PostedSettlement memory s = _activeSettlements[id][_finalCounts[id]];
        bool atFinalHead = t.checkpoint == t.finalHead;
        _finalCounts[id] += 1;
        t.finalised += 1;
        t.finalHead = _next(t.finalHead, s);
        if (atFinalHead) t.checkpoint = t.finalHead;
        t.owed += s.dataTotal - t.dataPaid + s.infrastructureTotal - t.infrastructurePaid;
        t.dataLocked -= s.dataTotal - t.dataPaid;
        t.infrastructureLocked -= s.infrastructureTotal - t.infrastructurePaid;
        (t.dataPaid, t.infrastructurePaid) = (s.dataTotal, s.infrastructureTotal);
        (t.root, t.round) = (s.root, s.round);
        t.pending -= 1;
    }

    function _claimed(Vm.Log calldata log) private {
        uint128 total = abi.decode(log.data, (uint128));
        _tasks[log.topics[1]].owed -= total - paid[log.topics[1]][_whom(log)];
        paid[log.topics[1]][_whom(log)] = total;
    }

    /// @dev The members as encoded: a split is set once.
    function _split(Vm.Log calldata log) private {
        require(splits[log.topics[1]][_whom(log)].length == 0, "a split is set once");
        splits[log.topics[1]][_whom(log)] = abi.encode(abi.decode(log.data, (MemberShare[])));
    }

    function _debited(Vm.Log calldata log) private {
        (uint128 total, uint128 taken) = abi.decode(log.data, (uint128, uint128));
        debited[log.topics[1]][_whom(log)] = total;
        bonds[log.topics[1]][_whom(log)] -= taken;
        treasury += taken;
    }

    function _slashed(Vm.Log calldata log) private {
        (bool ofStake, uint128 amount,) = abi.decode(log.data, (bool, uint128, bytes32));
        if (ofStake) {
            stakes[_whom(log)] -= amount;
            // A used-up pledge has ended one log earlier.
            if (pledged[log.topics[1]][_whom(log)]) slashedOf[log.topics[1]][_whom(log)] += amount;
        } else {
            bonds[log.topics[1]][_whom(log)] -= amount;
            slashedBondOf[log.topics[1]][_whom(log)] += amount;
        }
        treasury += amount;
    }

    function _bond(bytes32 kind, Vm.Log calldata log) private returns (bool) {
        if (kind == IMarketEvents.Bonded.selector) {
            bonds[log.topics[1]][_whom(log)] += abi.decode(log.data, (uint128));
            bondReleases[log.topics[1]][_whom(log)] = 0;
        } else if (kind == IMarketEvents.Unbonding.selector) {
            bondReleases[log.topics[1]][_whom(log)] = abi.decode(log.data, (uint64));
        } else if (kind == IMarketEvents.BondWithdrawn.selector) {
            bonds[log.topics[1]][_whom(log)] -= abi.decode(log.data, (uint128));
            bondReleases[log.topics[1]][_whom(log)] = 0;
        } else {
            return false;
        }
        return true;
    }

    function _stake(bytes32 kind, Vm.Log calldata log) private {
        address provider = address(uint160(uint256(log.topics[1])));
        if (kind == IMarketEvents.Staked.selector) {
            stakes[provider] += abi.decode(log.data, (uint128));
            stakeReleases[provider] = 0;
        } else if (kind == IMarketEvents.Unstaking.selector) {
            stakeReleases[provider] = abi.decode(log.data, (uint64));
        } else if (kind == IMarketEvents.StakeWithdrawn.selector) {
            stakes[provider] -= abi.decode(log.data, (uint128));
            stakeReleases[provider] = 0;
            for (uint256 i = 0; i < _everPledged[provider].length; ++i) {
                _unpledge(_everPledged[provider][i], provider);
            }
        } else if (kind == IMarketEvents.Pledged.selector) {
            pledged[log.topics[1]][_whom(log)] = true;
            stakeReleases[_whom(log)] = 0;
            _everPledged[_whom(log)].push(log.topics[1]);
        } else {
            require(kind == IMarketEvents.PledgeEnded.selector, "unknown event");
            _unpledge(log.topics[1], _whom(log));
        }
    }

    function _unpledge(bytes32 id, address provider) private {
        pledged[id][provider] = false;
        slashedOf[id][provider] = 0;
    }
}
