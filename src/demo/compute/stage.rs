//! The setup of a market for compute: wallets, genesis, policies, model, rows and order files in one folder.

use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::data::{load, save};
use florin_learning::{DataSource, Dataset};
use florin_protocol::{Address, Amount};

use super::super::plan::florins;
use super::super::setup::{PASSPHRASE_FILE, genesis, signing, wallet};

/// A vision transformer of PyTorch with three classes.
const MODEL: &[u8] = include_bytes!("../../../learning/data/graphs/vit.pt2");
/// Classes of the model: the remainder of a digit by three.
const CLASSES: u32 = 3;
/// Rows of the orders.
const ROWS: usize = 640;
/// Initial balance of each account.
const BALANCE_FLN: u64 = 1_000;
/// Accounts that audit.
const AUDITORS: [&str; 3] = ["otto", "pia", "quentin"];

/// A provider of the demonstration.
pub(super) struct DemoProvider {
    pub(super) name: &'static str,
    pub(super) account: Address,
    /// Whether it trains only every second segment.
    pub(super) is_lazy: bool,
}

/// A provider's name, its price for a useful device-hour and its largest deposits in FLN, and whether it cheats. The
/// cheat asks for much less, because it computes less and wants to win also where its steps were measured in a slow moment.
const PROVIDERS: [(&str, &str, &str, bool); 3] =
    [("lena", "1200", "45", false), ("marek", "1300", "60", false), ("nora", "300", "32", true)];

/// The files and accounts of a market for compute.
pub(super) struct ComputeStage {
    folder: PathBuf,
    pub(super) providers: Vec<DemoProvider>,
    pub(super) auditors: Vec<(&'static str, Address)>,
    referee: Address,
    /// The sum of all initial balances.
    pub(super) supply: Amount,
    /// All accounts.
    pub(super) accounts: Vec<Address>,
}

impl ComputeStage {
    /// Creates all files in an empty folder.
    pub(super) fn create(folder: &Path, seed: u64) -> anyhow::Result<Self> {
        let write = |file: &str, bytes: &[u8]| {
            let path = folder.join(file);
            std::fs::write(&path, bytes).with_context(|| path.display().to_string())
        };
        write(PASSPHRASE_FILE, b"demonstration\n")?;
        write("vit.pt2", MODEL)?;
        save(&rows()?, &folder.join("rows.florin"))?;
        let open = |name: &str| wallet(folder, seed, name);
        let (coordinator, renter) = (open("coordinator")?, open("renter")?);
        let referee = open("referee")?;
        let mut accounts = vec![coordinator, renter, referee];
        let (mut providers, mut auditors) = (Vec::new(), Vec::new());
        for (name, price, most, is_lazy) in PROVIDERS {
            let account = open(name)?;
            accounts.push(account);
            write(&format!("{name}.toml"), bidding(referee, price, most).as_bytes())?;
            providers.push(DemoProvider { name, account, is_lazy });
        }
        for name in AUDITORS {
            let account = open(name)?;
            accounts.push(account);
            write(&format!("{name}.toml"), auditing(referee).as_bytes())?;
            auditors.push((name, account));
        }
        write("referee.toml", b"referee = true\n")?;
        write("settings.toml", format!("arbiters = [\"{referee}\"]\n").as_bytes())?;
        let purses: Vec<(Address, Amount)> =
            accounts.iter().map(|account| (*account, florins(BALANCE_FLN))).collect();
        write("genesis.toml", genesis(&purses).as_bytes())?;
        let supply = Amount::total(purses.iter().map(|(_, amount)| *amount))?;
        let folder = folder.to_owned();
        Ok(Self { folder, providers, auditors, referee, supply, accounts })
    }

    /// Writes an order file with its own seed; returns its path.
    pub(super) fn order_file(&self, number: u64) -> anyhow::Result<String> {
        let text = include_str!("order.toml")
            .replace("@REFEREE@", &self.referee.to_string())
            .replace("@NUMBER@", &number.to_string());
        let path = self.folder.join(format!("order-{number}.toml"));
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path.display().to_string())
    }

    /// The path of a file in the folder, as an argument.
    pub(super) fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// The folder of the logs.
    pub(super) fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// The arguments for signing with an account's wallet.
    pub(super) fn signing(&self, name: &str) -> [String; 4] {
        signing(&self.folder, name)
    }

    /// The name of an account of a provider.
    pub(super) fn name_of(&self, account: Address) -> &'static str {
        let provider = self.providers.iter().find(|provider| provider.account == account);
        provider.map_or("–", |provider| provider.name)
    }
}

/// Digits with the remainders of a division by three as labels.
fn rows() -> anyhow::Result<Dataset> {
    let digits = load(&DataSource::Digits)?.slice(0..ROWS)?;
    let labels = digits.labels().iter().map(|label| label % CLASSES).collect();
    Ok(Dataset::new(digits.features().to_vec(), labels, digits.width(), CLASSES as usize)?)
}

fn bidding(referee: Address, price: &str, most: &str) -> String {
    format!(
        "referees = [\"{referee}\"]\nchallenge_min = \"1 s\"\nwindow_min = \"1 s\"\n\n\
         [bid]\nper_hour = \"{price}\"\nstake_max = \"{most}\"\norders_max = 4\n"
    )
}

fn auditing(referee: Address) -> String {
    format!(
        "referees = [\"{referee}\"]\nchallenge_min = \"1 s\"\nwindow_min = \"1 s\"\n\n\
         [audit]\nfee_min = \"0.01\"\nbond_max = \"200\"\n"
    )
}
