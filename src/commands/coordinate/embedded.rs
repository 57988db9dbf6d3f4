//! A coordinator with an embedded ledger.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use florin_coordinator::host::LedgerCopier;
use florin_coordinator::{Clock, LedgerEndpoint, host};
use florin_ledger::{EmbeddedChain, Genesis, Ledger};
use florin_participant::Wallet;
use florin_protocol::WalletSigner;

use crate::cli::Coordinate;
use crate::commands::now;
use crate::compose;
use crate::failure::Failure;
use crate::genesis_file::{self, GenesisSpec};

/// Opens the coordinator's embedded ledger; the first start creates it.
pub(super) fn open(
    arguments: &Coordinate,
    data: &Path,
    wallet: &Wallet,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(Arc<dyn Ledger>, LedgerEndpoint, LedgerCopier)> {
    let node = &arguments.node;
    if node.rpc.is_some() || node.deployment.is_some() || arguments.public_rpc.is_some() {
        let message = "--rpc, --public-rpc and --deployment (FLORIN_RPC, FLORIN_DEPLOYMENT) need \
            --ledger ethereum: the embedded ledger has no node";
        return Err(Failure::input("NODE_NOT_NEEDED", message).into());
    }
    create_ledger_once(arguments, data, wallet)?;
    let clock = Arc::clone(clock);
    let now = Arc::new(move || clock.now());
    let chain = Arc::new(compose::embedded_ledger(data, wallet.node_signer(), now)?);
    let door = host::ledger_rpc_handler(Arc::clone(&chain));
    let copied = Arc::clone(&chain);
    let copier: LedgerCopier = Arc::new(move || copied.begin_snapshot());
    Ok((chain, LedgerEndpoint::Embedded(door), copier))
}

/// Creates the ledger on the first start. Later starts never change the genesis or create tokens.
fn create_ledger_once(arguments: &Coordinate, data: &Path, wallet: &Wallet) -> anyhow::Result<()> {
    let file = compose::chain_file(data);
    if file.exists() {
        refuse_allocations(arguments, data)?;
        return Ok(());
    }
    let beginning = match &arguments.genesis {
        Some(genesis) => Some(genesis_file::read(genesis)?),
        None if arguments.allocate.is_empty() => None,
        None => Some(GenesisSpec {
            chain: genesis_file::DEFAULT_CHAIN_ID,
            created: None,
            allocations: arguments.allocate.clone(),
        }),
    };
    let Some(GenesisSpec { chain, created, allocations }) = beginning else {
        let message = format!(
            "there is no ledger in {} yet: set the initial balances with --allocate ADDRESS=AMOUNT \
             or --genesis FILE",
            data.display()
        );
        return Err(Failure::input("NO_GENESIS", message).into());
    };
    make_folder(data)?;
    let genesis = Genesis {
        chain_id: chain,
        operator: wallet.address(),
        operator_key: wallet.node_signer().key(),
        allocations,
        created: created.unwrap_or_else(now),
    };
    EmbeddedChain::create(&file, &genesis)?;
    Ok(())
}

/// Refuses initial balances for a ledger that exists. A start with the file of --genesis changes
/// nothing, so that a service may always start with the same arguments.
fn refuse_allocations(arguments: &Coordinate, data: &Path) -> anyhow::Result<()> {
    if arguments.genesis.is_some() {
        tracing::info!("the ledger already exists; --genesis is ignored");
    }
    if arguments.allocate.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{} has a ledger already, and --allocate sets balances only in its genesis: start without \
         --allocate, and fund an account with `florin transfer ADDRESS AMOUNT`",
        data.display()
    );
    Err(Failure::input("LEDGER_EXISTS", message).into())
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| path.display().to_string())
}
