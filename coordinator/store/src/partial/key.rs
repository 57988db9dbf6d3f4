//! Whose bytes a partial holds, and the file name that says so: it must be known again after a restart.

use florin_protocol::{Address, Digest, Round, TaskId};

/// What stands for a round and a sender in the name of what anybody may send.
const TOKEN: &str = "token";

/// Whose bytes a partial holds: nobody else can add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The task it is for.
    pub task: TaskId,
    /// Who may go on with it.
    pub whose: Whose,
    /// What the bytes are meant to be: an update's or a model's digest, or the root of a holdout.
    pub digest: Digest,
}

/// Who may go on with a partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The sender of a round's update, who has signed its header.
    Sender(Round, Address),
    /// Whoever knows a token that nobody else does: models and holdouts have no sender.
    Token(Digest),
}

impl Key {
    /// The name of its file: four parts with a point between.
    #[must_use]
    pub fn file_name(&self) -> String {
        let Self { task, digest, .. } = self;
        match self.whose {
            Whose::Sender(round, sender) => format!("{task}.{round}.{sender}.{digest}"),
            Whose::Token(token) => format!("{task}.{TOKEN}.{token}.{digest}"),
        }
    }

    /// The key in a file's name, if it is one.
    #[must_use]
    pub fn of_file_name(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let [task, round, sender, digest] = std::array::from_fn(|_| parts.next());
        let (task, digest) = (task?.parse().ok()?, digest?.parse().ok()?);
        let whose = match round? {
            TOKEN => Whose::Token(sender?.parse().ok()?),
            round => Whose::Sender(Round(round.parse().ok()?), sender?.parse().ok()?),
        };
        let key = Self { task, whose, digest };
        // A name in another form than ours would be a second name of the same bytes.
        (key.file_name() == name).then_some(key)
    }

    /// The wallet behind it, if it has one.
    pub(super) const fn sender(&self) -> Option<Address> {
        match self.whose {
            Whose::Sender(_, sender) => Some(sender),
            Whose::Token(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_nothing_else_is_one() {
        let task = TaskId([1; 32]);
        let digest = Digest([2; 32]);
        for whose in [
            Whose::Sender(Round(7), Address([0xab; 20])),
            Whose::Sender(Round(u32::MAX), Address([0; 20])),
            Whose::Token(Digest([3; 32])),
        ] {
            let key = Key { task, whose, digest };
            let name = key.file_name();
            assert!(name.len() < 255, "{name}");
            assert_eq!(Key::of_file_name(&name), Some(key));
            assert_eq!(Key::of_file_name(&format!("{name}.x")), None);
            assert_eq!(Key::of_file_name(&name.to_uppercase()), None);
        }
        for odd in ["", ".", "17", "a.b.c.d", "..."] {
            assert_eq!(Key::of_file_name(odd), None, "{odd}");
        }
    }
}
