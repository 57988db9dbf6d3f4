//! Whose data folder it is: written at the first start, so that it can be checked, backed up and restored without the
//! wallet.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use florin_protocol::{Address, Market};
use serde::{Deserialize, Serialize};

use florin_store::{IDENTITY_FILE, sync_folder};

/// What a data folder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The market.
    pub market: Market,
    /// The coordinator's account.
    pub coordinator: Address,
}

/// Why it is not known whose a folder is.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} does not say whose data it is ({why}): start the coordinator on it once [DATA_FOLDER_UNKNOWN]"
)]
pub struct IdentityError {
    /// Which file.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

impl Identity {
    /// Writes it into a folder, unless it is there.
    ///
    /// # Errors
    /// What the system said.
    pub fn write(self, data: &Path) -> io::Result<()> {
        if Self::read(data).is_ok_and(|known| known == self) {
            return Ok(());
        }
        let unfinished = data.join("market.unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec_pretty(&self)?)?;
        file.sync_all()?;
        fs::rename(unfinished, data.join(IDENTITY_FILE))?;
        sync_folder(data)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn read(data: &Path) -> Result<Self, IdentityError> {
        let path = data.join(IDENTITY_FILE);
        let text = fs::read(&path).map_err(|error| error.to_string());
        let parsed = text.and_then(|text| serde_json::from_slice(&text).map_err(|e| e.to_string()));
        parsed.map_err(|why| IdentityError { path, why })
    }
}
