//! Blocks, accounts and logs. Each transaction is executed and mined at once, in a block of its
//! own.

use std::collections::BTreeMap;
use std::convert::Infallible;

use alloy_consensus::SignableTransaction;
use alloy_consensus::transaction::RlpEcdsaDecodableTx;
use alloy_consensus::{Signed, Transaction, TxEip1559};
use revm::context::result::{EVMError, ExecutionResult, InvalidTransaction};
use revm::context::{BlockEnv, CfgEnv, TxEnv};
use revm::database::{CacheDB, EmptyDB};
use revm::primitives::hardfork::SpecId;
use revm::primitives::{Address, B256, Bytes, Log, TxKind, U256, keccak256};
use revm::state::AccountInfo;
use revm::{Context, DatabaseCommit, DatabaseRef, ExecuteEvm, MainBuilder, MainContext};

/// The constant base fee per unit of gas.
pub(crate) const BASE_FEE: u64 = 1_000_000_000;
/// Gas limit of a block and of a transaction: 2^24.
pub(crate) const GAS_MAX: u64 = 16_777_216;
/// The JSON-RPC error code of a reverted call, as in common nodes.
pub(crate) const REVERTED: i64 = 3;
/// The JSON-RPC error code of most other errors, as in common nodes.
pub(crate) const REFUSED: i64 = -32_000;

/// The error of a call.
#[derive(Clone, Debug)]
pub(crate) struct RpcFault {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Option<Bytes>,
}

pub(crate) fn refuse(message: impl Into<String>) -> RpcFault {
    RpcFault { code: REFUSED, message: message.into(), data: None }
}

/// A block. Its hash is computed from its content, not from an Ethereum header.
#[derive(Clone, Debug)]
pub(crate) struct MinedBlock {
    pub(crate) hash: B256,
    pub(crate) parent: B256,
    pub(crate) time: u64,
    pub(crate) gas: u64,
    pub(crate) transaction: Option<B256>,
}

/// A mined transaction with its result.
#[derive(Clone, Debug)]
pub(crate) struct MinedTransaction {
    pub(crate) hash: B256,
    pub(crate) block: u64,
    pub(crate) from: Address,
    pub(crate) to: Option<Address>,
    pub(crate) created: Option<Address>,
    pub(crate) nonce: u64,
    pub(crate) gas: u64,
    pub(crate) price: u128,
    pub(crate) success: bool,
    pub(crate) logs: Vec<Log>,
}

/// A contract call or a gas estimate.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallRequest {
    pub(crate) from: Address,
    pub(crate) to: Option<Address>,
    pub(crate) value: U256,
    pub(crate) data: Bytes,
    pub(crate) gas: Option<u64>,
}

/// The chain; only its newest state is available.
#[derive(Clone, Debug)]
pub(crate) struct InProcessChain {
    pub(crate) id: u64,
    pub(crate) blocks: Vec<MinedBlock>,
    pub(crate) mined: BTreeMap<B256, MinedTransaction>,
    /// The transaction with logs of each block that has one.
    pub(crate) blocks_with_logs: BTreeMap<u64, B256>,
    /// The time of the next block, in seconds.
    time: u64,
    state: CacheDB<EmptyDB>,
}

fn never(error: Infallible) -> RpcFault {
    match error {}
}

fn invalid(error: EVMError<Infallible>) -> RpcFault {
    match error {
        EVMError::Transaction(InvalidTransaction::NonceTooLow { tx, state }) => {
            refuse(format!("nonce too low: next nonce {state}, tx nonce {tx}"))
        }
        EVMError::Transaction(InvalidTransaction::LackOfFundForMaxFee { fee, balance }) => {
            refuse(format!("insufficient funds for gas * price + value: have {balance} want {fee}"))
        }
        other => refuse(other.to_string()),
    }
}

/// The output of a successful call.
fn call_output(result: ExecutionResult) -> Result<Bytes, RpcFault> {
    match result {
        ExecutionResult::Success { output, .. } => Ok(output.into_data()),
        ExecutionResult::Revert { output, .. } => Err(RpcFault {
            code: REVERTED,
            message: "execution reverted".to_owned(),
            data: Some(output),
        }),
        ExecutionResult::Halt { reason, .. } => Err(refuse(format!("{reason:?}"))),
    }
}

impl InProcessChain {
    /// An empty chain at a time in seconds; some accounts have ether.
    pub(crate) fn new(id: u64, time: u64, rich: &[(Address, U256)]) -> Self {
        let mut state = CacheDB::new(EmptyDB::new());
        for (account, wei) in rich {
            state.insert_account_info(*account, AccountInfo::from_balance(*wei));
        }
        let (blocks, mined, noisy) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut chain = Self { id, blocks, mined, blocks_with_logs: noisy, time, state };
        chain.mine_block(None, 0);
        chain
    }

    /// The newest block's number.
    pub(crate) fn height(&self) -> u64 {
        self.blocks.len() as u64 - 1
    }

    /// Advances the clock with an empty block. Two blocks may have the same time.
    pub(crate) fn set_time(&mut self, time: u64) {
        assert!(time >= self.time, "time {time} is before {}", self.time);
        if time > self.time {
            self.time = time;
            self.mine_block(None, 0);
        }
    }

    pub(crate) fn account(&self, address: Address) -> Result<AccountInfo, RpcFault> {
        Ok(self.state.basic_ref(address).map_err(never)?.unwrap_or_default())
    }

    pub(crate) fn code(&self, address: Address) -> Result<Bytes, RpcFault> {
        let hash = self.account(address)?.code_hash;
        Ok(self.state.code_by_hash_ref(hash).map_err(never)?.original_bytes())
    }

    /// The result of a call that changes nothing.
    pub(crate) fn call(&mut self, question: CallRequest) -> Result<Bytes, RpcFault> {
        self.simulate(question).and_then(call_output)
    }

    /// The gas estimate: the gas spent before refunds, plus a 63rd that a call must leave to its
    /// caller (EIP-150), plus a stipend.
    pub(crate) fn estimate_gas(&mut self, question: CallRequest) -> Result<u64, RpcFault> {
        let result = self.simulate(question)?;
        let spent = result.gas().total_gas_spent().max(result.tx_gas_used());
        call_output(result)?;
        Ok(spent + spent / 63 + 2_300)
    }

    /// Executes a signed transaction and mines it; returns its hash.
    pub(crate) fn send(&mut self, raw: &[u8]) -> Result<B256, RpcFault> {
        let hash = keccak256(raw);
        if self.mined.contains_key(&hash) {
            return Err(refuse("already known"));
        }
        let (signed, from) = decode(raw)?;
        let tx = signed.tx();
        let expected = self.account(from)?.nonce;
        if tx.nonce > expected {
            return Err(refuse(format!(
                "nonce {} leaves a gap after {expected}: no queue",
                tx.nonce
            )));
        }
        let env = TxEnv {
            tx_type: 2,
            caller: from,
            gas_limit: tx.gas_limit,
            gas_price: tx.max_fee_per_gas,
            gas_priority_fee: Some(tx.max_priority_fee_per_gas),
            kind: tx.to,
            value: tx.value,
            data: tx.input.clone(),
            nonce: tx.nonce,
            chain_id: Some(tx.chain_id),
            ..TxEnv::default()
        };
        let result = self.execute(env, BASE_FEE, true)?;
        let gas = result.tx_gas_used();
        let block = self.mine_block(Some(hash), gas);
        let mined = MinedTransaction {
            hash,
            block,
            from,
            to: tx.to.to().copied(),
            created: result.created_address(),
            nonce: tx.nonce,
            gas,
            price: tx.effective_gas_price(Some(BASE_FEE)),
            success: result.is_success(),
            logs: result.into_logs(),
        };
        if mined.success && !mined.logs.is_empty() {
            self.blocks_with_logs.insert(block, hash);
        }
        self.mined.insert(hash, mined);
        Ok(hash)
    }

    fn simulate(&mut self, question: CallRequest) -> Result<ExecutionResult, RpcFault> {
        let CallRequest { from, to, value, data, gas } = question;
        let gas_limit = gas.unwrap_or(GAS_MAX).min(GAS_MAX);
        let kind = to.map_or(TxKind::Create, TxKind::Call);
        let (caller, chain_id) = (from, Some(self.id));
        let env = TxEnv { caller, gas_limit, kind, value, data, chain_id, ..TxEnv::default() };
        self.execute(env, 0, false)
    }

    /// Executes one transaction on the newest state, and commits it if `keep`.
    fn execute(
        &mut self,
        tx: TxEnv,
        basefee: u64,
        keep: bool,
    ) -> Result<ExecutionResult, RpcFault> {
        let mut cfg = CfgEnv::new_with_spec(SpecId::OSAKA);
        cfg.chain_id = self.id;
        cfg.disable_nonce_check = !keep;
        let block = BlockEnv {
            number: U256::from(self.blocks.len()),
            timestamp: U256::from(self.time),
            gas_limit: GAS_MAX,
            basefee,
            prevrandao: Some(B256::ZERO),
            ..BlockEnv::default()
        };
        let context = Context::mainnet().with_db(&mut self.state).with_cfg(cfg).with_block(block);
        let done = context.build_mainnet().transact(tx).map_err(invalid)?;
        if keep {
            self.state.commit(done.state);
        }
        Ok(done.result)
    }

    /// Adds a block; returns its number.
    fn mine_block(&mut self, transaction: Option<B256>, gas: u64) -> u64 {
        let parent = self.blocks.last().map_or(B256::ZERO, |head| head.hash);
        let number = self.blocks.len() as u64;
        let numbers = [number, self.time].map(u64::to_be_bytes).concat();
        let content = transaction.unwrap_or_default();
        let hash = keccak256([parent.as_slice(), &numbers, content.as_slice()].concat());
        self.blocks.push(MinedBlock { hash, parent, time: self.time, gas, transaction });
        number
    }
}

/// Decodes an EIP-1559 transaction; returns it with its sender.
fn decode(raw: &[u8]) -> Result<(Signed<TxEip1559>, Address), RpcFault> {
    let Some((2, mut fields)) = raw.split_first().map(|(kind, fields)| (*kind, fields)) else {
        return Err(refuse("transaction type not supported: only EIP-1559"));
    };
    let signed = TxEip1559::rlp_decode_signed(&mut fields)
        .map_err(|error| refuse(format!("transaction cannot be decoded: {error}")))?;
    if !fields.is_empty() {
        return Err(refuse("trailing bytes after the transaction"));
    }
    let signature = signed.signature();
    let from = match signature.normalize_s() {
        Some(_) => return Err(refuse("invalid sender: the signature's s is high")),
        None => signature.recover_address_from_prehash(&signed.tx().signature_hash()),
    };
    let from = from.map_err(|error| refuse(format!("invalid sender: {error}")))?;
    Ok((signed, from))
}
