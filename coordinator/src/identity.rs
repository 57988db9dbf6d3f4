//! The owner of a data folder. It is written at the first start, so that the folder can be checked,
//! backed up and restored without the wallet.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use florin_protocol::{Address, Canonical, Digest, MarketId};
use serde::{Deserialize, Serialize};

use florin_store::{IDENTITY_FILE, sync_folder};

/// The market and the coordinator that a data folder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The market.
    pub market: MarketId,
    /// The coordinator's account.
    pub coordinator: Address,
}

/// Why the owner of a folder is unknown.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} does not name the folder's owner ({why}): start the coordinator on the folder once \
     [DATA_FOLDER_WITHOUT_IDENTITY]"
)]
pub struct IdentityError {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub why: String,
}

impl Identity {
    /// The digest of market and coordinator, which a journal records as its owner.
    #[must_use]
    pub fn owner(self) -> Digest {
        /// The owner of a journal.
        #[derive(borsh::BorshSerialize, borsh::BorshDeserialize)]
        struct Owner(MarketId, Address);
        impl Canonical for Owner {
            const DOMAIN: &'static str = "florin v1 journal owner";
        }
        Owner(self.market, self.coordinator).digest()
    }

    /// Writes the identity into a folder, unless the folder already has it.
    ///
    /// # Errors
    /// The system's error.
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

    /// Reads the identity of a folder.
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
