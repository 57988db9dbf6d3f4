//! The setup of a demonstration: shards, wallets, genesis and task file in one folder.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::data::{load, save};
use florin_learning::{DataSource, Dataset, PartitionScheme, SplitPart, partition, split};
use florin_participant::{KeystoreStrength, Secret, Wallet};
use florin_protocol::{Address, Amount, UpdateFormat, WalletSigner, blob_digest};

use super::plan::{self, Behaviour};
use crate::failure::Failure;

/// The file with the passphrase of all wallets.
pub(super) const PASSPHRASE_FILE: &str = "passphrase";

/// A participant, ready to start.
pub(crate) struct DemoParticipant {
    pub(crate) name: &'static str,
    pub(crate) behaviour: Behaviour,
    pub(crate) account: Address,
    pub(crate) rows: u64,
}

/// The files and accounts of a demonstration.
#[cfg_attr(
    not(feature = "ethereum"),
    expect(dead_code, reason = "a demonstration on Ethereum opens the wallets")
)]
pub(crate) struct DemoSetup {
    folder: PathBuf,
    pub(crate) participants: Vec<DemoParticipant>,
    pub(crate) buyer: Address,
    pub(crate) provider: Address,
    pub(crate) coordinator: Address,
    /// The initial balance of every account.
    pub(crate) balances: Vec<(Address, Amount)>,
}

impl DemoSetup {
    /// Creates all files in an empty folder.
    pub(crate) fn create(
        folder: &Path,
        seed: u64,
        rounds: u32,
        format: UpdateFormat,
    ) -> anyhow::Result<Self> {
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            std::fs::write(&path, text).with_context(|| path.display().to_string())
        };
        write(PASSPHRASE_FILE, "demonstration\n")?;
        let rows = shards(folder, seed)?;
        let mut actors = Vec::with_capacity(plan::PARTICIPANTS.len());
        for ((name, behaviour), rows) in plan::PARTICIPANTS.into_iter().zip(rows) {
            let account = wallet(folder, seed, name)?;
            actors.push(DemoParticipant { name, behaviour, account, rows });
        }
        let buyer = wallet(folder, seed, "buyer")?;
        let provider = wallet(folder, seed, "provider")?;
        let coordinator = wallet(folder, seed, "coordinator")?;
        let mut purses = vec![
            (buyer, plan::florins(plan::BUYER_FLN)),
            (provider, plan::florins(plan::PROVIDER_FLN)),
            (coordinator, Amount::ZERO),
        ];
        purses.extend(actors.iter().map(|a| (a.account, plan::florins(plan::PARTICIPANT_FLN))));
        write("genesis.toml", &genesis(&purses))?;
        write("task.toml", &plan::task_file(seed, rounds, format))?;
        Ok(Self {
            folder: folder.to_owned(),
            participants: actors,
            buyer,
            provider,
            coordinator,
            balances: purses,
        })
    }

    /// The passphrase of all wallets.
    #[cfg(feature = "ethereum")]
    pub(crate) fn passphrase(&self) -> anyhow::Result<Secret> {
        Ok(Secret::from_file(&self.folder.join(PASSPHRASE_FILE))?)
    }

    /// The wallets of all accounts.
    #[cfg(feature = "ethereum")]
    pub(crate) fn wallets(&self) -> anyhow::Result<BTreeMap<Address, Wallet>> {
        let passphrase = self.passphrase()?;
        let names = self.participants.iter().map(|actor| actor.name);
        let mut wallets = BTreeMap::new();
        for name in names.chain(["buyer", "provider", "coordinator"]) {
            let wallet = Wallet::open(&self.folder.join(format!("{name}.json")), &passphrase)?;
            wallets.insert(wallet.address(), wallet);
        }
        Ok(wallets)
    }

    /// The path of a file in the folder, as an argument.
    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// The folder of the logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// The arguments for signing with an account's wallet.
    pub(crate) fn signing(&self, name: &str) -> [String; 4] {
        signing(&self.folder, name)
    }
}

/// The arguments for signing with a wallet of a folder.
pub(super) fn signing(folder: &Path, name: &str) -> [String; 4] {
    let path = |file: &str| folder.join(file).display().to_string();
    [
        "--wallet".to_owned(),
        path(&format!("{name}.json")),
        "--passphrase-file".to_owned(),
        path(PASSPHRASE_FILE),
    ]
}

/// The rows of the digits data set, by owner.
pub struct SplitData {
    /// The buyer's holdout.
    pub holdout: Dataset,
    /// The test set; no party of the market has it.
    pub test: Dataset,
    /// The shards of the participants, in the order of [`plan::PARTICIPANTS`].
    pub shards: Vec<Dataset>,
}

/// Splits the digits data set. Honest and dishonest participants get separate parts, so that no
/// digit is held only by participants that do not train on it.
pub fn split_digits(seed: u64) -> anyhow::Result<SplitData> {
    let digits = load(&DataSource::Digits)?;
    let aside = [plan::HOLDOUT, plan::TEST, plan::NOT_HONEST].map(SplitPart::Fraction);
    let parts: Vec<SplitPart> = aside.into_iter().chain([SplitPart::Rest]).collect();
    let cut = split(digits.rows(), seed, &parts)?;
    let how = PartitionScheme::Dirichlet { alpha: plan::ALPHA };
    let mut dealt: BTreeMap<usize, Dataset> = BTreeMap::new();
    for (rows, honest) in [(&cut[2], false), (&cut[3], true)] {
        let data = digits.subset(rows)?;
        let theirs: Vec<usize> = (0..plan::PARTICIPANTS.len())
            .filter(|at| (plan::PARTICIPANTS[*at].1 == Behaviour::Honest) == honest)
            .collect();
        let shards = partition(&data, theirs.len(), &how, plan::ROWS_MIN, seed)?;
        for (at, shard) in theirs.into_iter().zip(shards) {
            dealt.insert(at, data.subset(&shard)?);
        }
    }
    Ok(SplitData {
        holdout: digits.subset(&cut[0])?,
        test: digits.subset(&cut[1])?,
        shards: dealt.into_values().collect(),
    })
}

/// Writes all rows into files of the folder, and returns the number of rows of each participant.
fn shards(folder: &Path, seed: u64) -> anyhow::Result<Vec<u64>> {
    let SplitData { holdout, test, shards } = split_digits(seed)?;
    save(&holdout, &folder.join("holdout.florin"))?;
    save(&test, &folder.join("test.florin"))?;
    for ((name, _), shard) in plan::PARTICIPANTS.iter().zip(&shards) {
        save(shard, &folder.join(format!("{name}.florin")))?;
    }
    Ok(shards.iter().map(|shard| shard.rows() as u64).collect())
}

/// Creates a wallet. Its key is derived from the seed, so that a demonstration is reproducible
/// (entries are ordered by address). Such a key is not secret and must not hold real tokens.
pub(super) fn wallet(folder: &Path, seed: u64, name: &str) -> anyhow::Result<Address> {
    let key = blob_digest(format!("florin demonstration {seed}: {name}").as_bytes());
    let passphrase = Secret::from_file(&folder.join(PASSPHRASE_FILE))?;
    let file = folder.join(format!("{name}.json"));
    let key = Secret::new(key.to_string());
    Ok(Wallet::import_key(&file, &key, &passphrase, KeystoreStrength::Light)?.address())
}

pub(super) fn genesis(purses: &[(Address, Amount)]) -> String {
    // A fixed creation time: the genesis digest, and with it the task id, depends only on the seed.
    let mut text = String::from("chain = 31337\ncreated = \"2026-01-01\"\n\n[allocate]\n");
    for (account, amount) in purses.iter().filter(|(_, amount)| !amount.is_zero()) {
        let _ = writeln!(text, "{account} = \"{amount}\"");
    }
    text
}

/// The working folder of a demonstration: a temporary folder, or a new permanent one.
pub(crate) enum DemoFolder {
    Temporary(tempfile::TempDir),
    Permanent(PathBuf),
}

impl DemoFolder {
    /// Creates the folder.
    pub(crate) fn create(keep: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = keep else {
            let made = tempfile::Builder::new().prefix("florin-demo-").tempdir();
            return Ok(Self::Temporary(made.context("cannot create a temporary folder")?));
        };
        if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            let message = format!("{} is not empty: choose a new folder", path.display());
            return Err(Failure::input("FOLDER_NOT_EMPTY", message).into());
        }
        std::fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        Ok(Self::Permanent(path.to_owned()))
    }

    /// The path of the folder.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Permanent(path) => path,
        }
    }
}
