//! The total of a program's deposits, so that a limit holds over all of them.
//!
//! The ledger has no record of slashed amounts. Without one here, a program whose deposit was
//! slashed would deposit again, up to its limit each time.

use std::path::PathBuf;

use florin_protocol::Amount;
use serde::{Deserialize, Serialize};

use crate::atomic_file::{self, FileError};

const BYTES_MAX: u64 = 1024;

/// A file with the total of all deposits, less what came back.
#[derive(Debug)]
pub(crate) struct DepositRecord {
    path: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    deposited: Amount,
}

impl DepositRecord {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> Result<Amount, FileError> {
        let Some(bytes) = atomic_file::read_limited(&self.path, BYTES_MAX)? else {
            return Ok(Amount::ZERO);
        };
        serde_json::from_slice(&bytes)
            .map(|Content { deposited }| deposited)
            .map_err(|error| FileError::new("read", &self.path, error.into()))
    }

    /// All deposits, less what came back.
    pub(crate) fn outstanding(&self) -> Result<Amount, FileError> {
        self.read()
    }

    fn write(&self, deposited: Amount) -> Result<(), FileError> {
        let bytes = serde_json::to_vec(&Content { deposited })
            .map_err(|error| FileError::new("write", &self.path, error.into()))?;
        if let Some(folder) = self.path.parent() {
            atomic_file::create_folder(folder)?;
        }
        atomic_file::write_atomically(&self.path, &bytes)
    }

    /// The part of all deposits that is neither on the ledger now nor accounted for: `present` is
    /// the deposit on the ledger with the debits that it has applied.
    pub(crate) fn lost(&self, present: Amount) -> Result<Amount, FileError> {
        Ok(self.read()?.minus(present).unwrap_or(Amount::ZERO))
    }

    /// Records a deposit. `present` includes it.
    pub(crate) fn deposited(&self, added: Amount, present: Amount) -> Result<(), FileError> {
        let total = self.read()?.plus(added).unwrap_or(present);
        self.write(total.max(present))
    }

    /// Records that a deposit came back.
    pub(crate) fn returned(&self, amount: Amount) -> Result<(), FileError> {
        self.write(self.read()?.minus(amount).unwrap_or(Amount::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fln;

    #[test]
    fn slashed_deposits_are_lost_and_returned_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let record = DepositRecord::new(folder.path().join("task/bond.json"));
        assert_eq!(record.lost(fln("0")).unwrap(), Amount::ZERO);
        record.deposited(fln("5"), fln("5")).unwrap();
        assert_eq!(record.lost(fln("5")).unwrap(), Amount::ZERO);
        assert_eq!(record.lost(fln("2")).unwrap(), fln("3"));
        record.deposited(fln("3"), fln("5")).unwrap();
        assert_eq!(record.lost(fln("5")).unwrap(), fln("3"), "a new deposit replaces no loss");
        record.returned(fln("5")).unwrap();
        assert_eq!(record.lost(Amount::ZERO).unwrap(), fln("3"));
        // A crash between a deposit and its record.
        let other = DepositRecord::new(folder.path().join("stake.json"));
        other.deposited(fln("1"), fln("7")).unwrap();
        assert_eq!(other.lost(fln("0")).unwrap(), fln("7"));
    }
}
