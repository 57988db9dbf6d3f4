//! Why a client does not take part in a task.

use florin_protocol::{Amount, Digest};

/// A reason against a task. [`TaskRefusal::code`] is stable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TaskRefusal {
    /// The task is over.
    #[error("it is over")]
    Over,
    /// The coordinator's answer cannot be used: for example, it lists a task that does not exist.
    #[error("{why}")]
    Unreadable {
        /// The code of the error.
        code: &'static str,
        /// The error.
        why: String,
    },
    /// The specification breaks a rule.
    #[error("{why}")]
    Invalid {
        /// The rule.
        why: String,
    },
    /// The ledger does not hold the pay that the specification states.
    #[error("{why}; work for it may never be paid")]
    NotFunded {
        /// The difference.
        why: &'static str,
    },
    /// No set of rows may be used for it.
    #[error("the policy allows no data for it: add its id, buyer, schema or name to a [[data]]")]
    NotAllowed,
    /// The rows do not fit it.
    #[error("{why}")]
    Misfit {
        /// The code of the misfit.
        code: String,
        /// The misfit.
        why: String,
    },
    /// It admits other accounts only.
    #[error("it admits other accounts only: ask its buyer, and take part by --task")]
    NotAdmitted,
    /// A kind of model that the policy does not allow.
    #[error("its model is of the kind {kind}, which models.kinds does not list")]
    ModelKind {
        /// The kind.
        kind: &'static str,
    },
    /// A model that is larger than the policy allows.
    #[error("its model has {bytes} bytes, and models.bytes_max is {limit}")]
    ModelTooLarge {
        /// Bytes of the model with all its files.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The buyer chose the initial parameters.
    #[error("its buyer chose the initial model: if you trust it, add {model} to models.accept")]
    ModelNotAccepted {
        /// The digest that consent names.
        model: Digest,
    },
    /// The model is a program.
    #[error("its model is a program: read it, then add {model} to models.accept")]
    TrainerNotAccepted {
        /// The digest that consent names.
        model: Digest,
    },
    /// The arbiter is not accepted.
    #[error("{why}")]
    Arbiter {
        /// The reason, and the option that accepts it.
        why: String,
    },
    /// The task requires more noise than the client adds.
    #[error("it requires noise of at least {least} in every update: use --clip and --noise")]
    NoiseTooLow {
        /// The least noise.
        least: florin_protocol::Micro,
    },
    /// The bond would exceed the limit.
    #[error("it requires a bond of {least} FLN, and the bonds of all tasks leave {left} FLN")]
    BondLimit {
        /// The least bond with which a row counts.
        least: Amount,
        /// The rest of the policy's limit.
        left: Amount,
    },
    /// A training takes longer than a round.
    #[error("a training takes {seconds:.0} s, and a round has {limit:.0} s for it")]
    TooSlow {
        /// Predicted seconds of a training.
        seconds: f64,
        /// Seconds from a round's offer to the last commit.
        limit: f64,
    },
    /// The predicted pay is below the policy's least.
    #[error("it is predicted to pay {per_hour:.3} FLN for an hour of training, less than {least}")]
    PayTooLow {
        /// Predicted florins for an hour of the device.
        per_hour: f64,
        /// The policy's least.
        least: Amount,
    },
    /// Other tasks take all places.
    #[error("better tasks take all {places} places")]
    BetterTasks {
        /// The number of places.
        places: usize,
    },
    /// Not within the policy's hours.
    #[error("it is outside the policy's hours")]
    OutsideHours,
    /// Too many tasks are listed.
    #[error("a later review examines it: one examines 256 tasks, the largest pools first")]
    NotExamined,
    /// The client has left it after an alarm.
    #[error("it raised an alarm: `florin audit` shows the mismatch")]
    Alarm,
    /// A participation in it ended with an error.
    #[error("{why}")]
    Failed {
        /// The code of the error.
        code: &'static str,
        /// The error.
        why: String,
    },
}

impl TaskRefusal {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Over => "TASK_CLOSED",
            Self::Unreadable { code, .. } | Self::Failed { code, .. } => code,
            Self::Invalid { .. } => "INVALID_TASK",
            Self::NotFunded { .. } => "NOT_FUNDED",
            Self::NotAllowed => "DATA_NOT_ALLOWED",
            Self::Misfit { code, .. } => code,
            Self::NotAdmitted => "NOT_ADMITTED",
            Self::ModelKind { .. } => "MODEL_KIND_NOT_ALLOWED",
            Self::ModelTooLarge { .. } => "MODEL_TOO_LARGE",
            Self::ModelNotAccepted { .. } => "MODEL_NOT_DERIVED",
            Self::TrainerNotAccepted { .. } => "TRAINER_NOT_ACCEPTED",
            Self::Arbiter { .. } => "ARBITER_NOT_ACCEPTED",
            Self::NoiseTooLow { .. } => "NOISE_TOO_LOW",
            Self::BondLimit { .. } => "BOND_LIMIT_TOO_LOW",
            Self::TooSlow { .. } => "TRAINING_TOO_SLOW",
            Self::PayTooLow { .. } => "PAY_TOO_LOW",
            Self::BetterTasks { .. } => "TASKS_MAX_REACHED",
            Self::OutsideHours => "OUTSIDE_HOURS",
            Self::NotExamined => "NOT_EXAMINED",
            Self::Alarm => "ALARM_RAISED",
        }
    }

    /// Whether it follows from the policy and the specification, which does not change: the task is
    /// not examined again.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Over
                | Self::Invalid { .. }
                | Self::NotAllowed
                | Self::Misfit { .. }
                | Self::NotAdmitted
                | Self::ModelKind { .. }
                | Self::ModelTooLarge { .. }
                | Self::ModelNotAccepted { .. }
                | Self::TrainerNotAccepted { .. }
                | Self::Arbiter { .. }
                | Self::NoiseTooLow { .. }
                | Self::TooSlow { .. }
                | Self::Alarm
        )
    }
}
