// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {Market} from "../src/Market.sol";
import {PostedSettlement} from "../src/interfaces/Types.sol";

/// @notice A market whose books can be written, to begin with any state that the rules allow.
contract OpenBooks is Market {
    constructor(IERC20 token) Market(token) {}

    function write(bytes32 id, uint96 owed, bytes32 root, uint128 debitMax, uint32 round) external {
        Task storage task_ = _tasks[id];
        task_.head = bytes32(uint256(1));
        task_.claimable = Claimable(owed, bytes20(root));
        task_.debitMax = debitMax;
        task_.progress.round = round;
    }

    function writeAccount(bytes32 id, address account, uint128 paid, uint128 debited, uint128 bond_)
        external
    {
        _accounts[id][account] = Account(Taken(paid, debited), Bond(bond_, 0));
    }

    function writePools(bytes32 id, uint96[2] calldata deposit, uint96[2] calldata paid, address buyer)
        external
    {
        Task storage task_ = _tasks[id];
        task_.head = bytes32(uint256(1));
        task_.base = bytes32(uint256(1));
        (task_.data, task_.infrastructure) = (deposit[0], deposit[1]);
        (task_.dataPaid, task_.infrastructurePaid) = (paid[0], paid[1]);
        task_.buyer = buyer;
        task_.coordinator = msg.sender;
    }

    function owedOf(bytes32 id) external view returns (uint256) {
        return _tasks[id].claimable.owed;
    }
}

contract Plain is ERC20 {
    constructor(address to) ERC20("Plain", "P") {
        _mint(to, type(uint256).max);
    }
}

/// @title The arithmetic of a claim and of a refund, for every number there is.
/// @dev halmos --root . --contract Arithmetic (FOUNDRY_PROFILE=symbolic)
contract Arithmetic {
    bytes32 private constant TASK = "task";
    address private constant ADA = address(0xADA);
    address private constant BUYER = address(0xB0B);
    OpenBooks private market;
    IERC20 private token;

    function setUp() public {
        Plain plain = new Plain(address(this));
        token = plain;
        market = new OpenBooks(token);
        plain.transfer(address(market), type(uint256).max);
    }

    /// @dev A tree of one leaf: its root is the leaf.
    function leaf(uint256 paid, uint256 debited) private pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(ADA, paid, debited))));
    }

    function check_a_claim_moves_the_differences_and_no_more(
        uint128[2] calldata before,
        uint256 paid,
        uint256 debited,
        uint96 owed,
        uint128 bond,
        uint128 debitMax,
        uint32 round
    ) external {
        market.write(TASK, owed, leaf(paid, debited), debitMax, round);
        market.writeAccount(TASK, ADA, before[0], before[1], bond);
        try market.claim(TASK, ADA, paid, debited, new bytes32[](0)) returns (uint128 amount) {
            assert(paid >= before[0] && debited >= before[1]);
            assert(amount == paid - before[0]);
            assert(amount <= owed);
            assert(token.balanceOf(ADA) == amount);
            assert(market.owedOf(TASK) == owed - amount);
            uint256 more = debited - before[1];
            uint256 taken = more < bond ? more : bond;
            assert(market.treasury() == taken);
            assert(market.bondOf(TASK, ADA).amount == bond - taken);
            if (more != 0) assert(debited <= uint256(debitMax) * round);
            (uint128 nowPaid, uint128 nowDebited) = market.claimed(TASK, ADA);
            assert(nowPaid == paid && nowDebited == debited);
        } catch {
            assert(token.balanceOf(ADA) == 0);
        }
    }

    function check_a_refund_is_what_was_not_paid(uint96[2] calldata deposit, uint96[2] calldata paid)
        external
    {
        if (paid[0] > deposit[0] || paid[1] > deposit[1]) return;
        market.writePools(TASK, deposit, paid, BUYER);
        uint256 refund = market.close(TASK, new PostedSettlement[](0));
        assert(refund + paid[0] + paid[1] == uint256(deposit[0]) + deposit[1]);
        assert(token.balanceOf(BUYER) == refund);
    }
}
