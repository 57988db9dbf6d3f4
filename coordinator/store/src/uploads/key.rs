//! The key of a resumable upload, and the file name that encodes it, so that the key is known after
//! a restart.

use florin_protocol::{Address, Digest, RoundNumber, TaskId};

/// Replaces round and sender in the file name of an upload without a sender.
const TOKEN: &str = "token";

/// Identifies a resumable upload. Only its owner can append to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UploadKey {
    /// The task of the upload.
    pub task: TaskId,
    /// The owner of the upload.
    pub owner: UploadOwner,
    /// The expected digest: of an update, of a model, or the root of a holdout.
    pub digest: Digest,
}

/// The owner of a resumable upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UploadOwner {
    /// The sender of a round's update, which has signed its header.
    Sender(RoundNumber, Address),
    /// The client that knows this secret token: models and holdouts have no sender.
    Token(Digest),
}

impl UploadKey {
    /// The file name: four parts, separated by dots.
    #[must_use]
    pub fn file_name(&self) -> String {
        let Self { task, digest, .. } = self;
        match self.owner {
            UploadOwner::Sender(round, sender) => format!("{task}.{round}.{sender}.{digest}"),
            UploadOwner::Token(token) => format!("{task}.{TOKEN}.{token}.{digest}"),
        }
    }

    /// Parses a file name; `None` if it is not that of an upload.
    #[must_use]
    pub fn from_file_name(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let [task, round, sender, digest] = std::array::from_fn(|_| parts.next());
        let (task, digest) = (task?.parse().ok()?, digest?.parse().ok()?);
        let whose = match round? {
            TOKEN => UploadOwner::Token(sender?.parse().ok()?),
            round => UploadOwner::Sender(RoundNumber(round.parse().ok()?), sender?.parse().ok()?),
        };
        let key = Self { task, owner: whose, digest };
        // Only the canonical form is accepted, so that a key has exactly one file name.
        (key.file_name() == name).then_some(key)
    }

    /// The sender's wallet, if the upload has a sender.
    pub(super) const fn sender(&self) -> Option<Address> {
        match self.owner {
            UploadOwner::Sender(_, sender) => Some(sender),
            UploadOwner::Token(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_round_trip_and_other_names_are_rejected() {
        let task = TaskId([1; 32]);
        let digest = Digest([2; 32]);
        for whose in [
            UploadOwner::Sender(RoundNumber(7), Address([0xab; 20])),
            UploadOwner::Sender(RoundNumber(u32::MAX), Address([0; 20])),
            UploadOwner::Token(Digest([3; 32])),
        ] {
            let key = UploadKey { task, owner: whose, digest };
            let name = key.file_name();
            assert!(name.len() < 255, "{name}");
            assert_eq!(UploadKey::from_file_name(&name), Some(key));
            assert_eq!(UploadKey::from_file_name(&format!("{name}.x")), None);
            assert_eq!(UploadKey::from_file_name(&name.to_uppercase()), None);
        }
        for odd in ["", ".", "17", "a.b.c.d", "..."] {
            assert_eq!(UploadKey::from_file_name(odd), None, "{odd}");
        }
    }
}
