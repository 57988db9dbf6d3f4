//! Settings of local training.

use std::ops::RangeInclusive;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::limits::{CROP_PADDING_MAX, WARMUP_STEPS_MAX};
use crate::micro::Micro;
use crate::spec_error::{SpecError, require};

/// The values of [`Training::noise_min`] that ask for noise: those that a private training can have.
pub const NOISE_MIN_RANGE: RangeInclusive<Micro> = Micro(100_000)..=Micro(1_000_000_000);

/// Settings of local training.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Training {
    /// Passes over the participant's rows in a round.
    pub epochs: u32,
    /// Batch size in rows.
    pub batch: u32,
    /// Step size before schedule and warm-up.
    pub learning_rate: Micro,
    /// Momentum of SGD, below 1.
    pub momentum: Micro,
    /// Weight decay, 0 to 1.
    pub weight_decay: Micro,
    /// Largest gradient norm of a step; 0 disables clipping.
    pub clip_gradient: Micro,
    /// FedProx μ: proximal term towards the round's base model; 0 disables it.
    pub fedprox: Micro,
    /// Least noise of a participant's private training, as a multiple of its clip; 0 asks for none.
    /// Participants' programs keep it: an update does not show how it was made.
    pub noise_min: Micro,
    /// The rule of a step.
    pub optimizer: Optimizer,
    /// How the step size falls over the rounds.
    pub schedule: Schedule,
    /// First steps of each round's training in which the step size rises, at most
    /// [`WARMUP_STEPS_MAX`].
    pub warmup_steps: u32,
    /// Random changes of images.
    pub augmentation: Augmentation,
}

/// Random changes of a participant's images in each epoch of its training; no other computation has
/// them. Only a task whose rows are images has any.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Augmentation {
    /// Whether half of the images are mirrored, left to right.
    pub flip: bool,
    /// The image is extended by this many zeros on each side, and a crop of its own size is taken from
    /// a random place; at most [`CROP_PADDING_MAX`].
    pub crop_padding: u32,
}

impl Augmentation {
    /// No changes.
    pub const NONE: Self = Self { flip: false, crop_padding: 0 };

    pub(crate) fn check(&self, are_images: bool) -> Result<(), SpecError> {
        require(
            self.crop_padding <= CROP_PADDING_MAX,
            "training.crop_padding",
            self.crop_padding,
            "use 0 to 64 pixels",
        )?;
        require(
            are_images || *self == Self::NONE,
            "training.flip",
            "flip or crop_padding",
            "only the rows of a task with data.image are images: remove the key",
        )
    }
}

/// The rule by which a step of local training changes the parameters. Its state starts anew in each
/// round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Optimizer {
    /// Stochastic gradient descent, with momentum.
    Sgd,
    /// Adam with an L2 penalty (Kingma and Ba 2015).
    Adam {
        /// Decay rate of the first moment, below 1.
        beta1: Micro,
        /// Decay rate of the second moment, below 1.
        beta2: Micro,
    },
    /// Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019).
    #[serde(rename = "adamw")]
    AdamW {
        /// Decay rate of the first moment, below 1.
        beta1: Micro,
        /// Decay rate of the second moment, below 1.
        beta2: Micro,
    },
}

/// The factor of the step size at a progress of the task.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Schedule {
    /// 1 throughout.
    Constant,
    /// From 1 to 0 on a line.
    Linear,
    /// From 1 to 0 on half a cosine wave.
    Cosine,
}

impl Training {
    /// Checks all settings but the augmentation, which depends on the rows.
    ///
    /// # Errors
    /// [`SpecError`] with the first that is invalid.
    pub fn check(&self) -> Result<(), SpecError> {
        require(
            (1..=1_000).contains(&self.epochs),
            "training.epochs",
            self.epochs,
            "use 1 to 1000 epochs",
        )?;
        require(
            (1..=65_536).contains(&self.batch),
            "training.batch",
            self.batch,
            "use 1 to 65536 rows",
        )?;
        require(
            self.learning_rate > Micro::ZERO && self.learning_rate <= Micro(100_000_000),
            "training.learning_rate",
            self.learning_rate,
            "must be above 0 and at most 100",
        )?;
        require(
            self.momentum < Micro::ONE,
            "training.momentum",
            self.momentum,
            "must be at least 0 and below 1",
        )?;
        require(
            self.weight_decay <= Micro::ONE,
            "training.weight_decay",
            self.weight_decay,
            "must be from 0 to 1",
        )?;
        require(
            self.noise_min == Micro::ZERO || NOISE_MIN_RANGE.contains(&self.noise_min),
            "training.noise_min",
            self.noise_min,
            "must be 0 (none) or from 0.1 to 1000 times the clip of a row's gradient",
        )?;
        require(
            self.warmup_steps <= WARMUP_STEPS_MAX,
            "training.warmup_steps",
            self.warmup_steps,
            "use 0 to 1000000 steps",
        )?;
        let (Optimizer::Adam { beta1, beta2 } | Optimizer::AdamW { beta1, beta2 }) = self.optimizer
        else {
            return Ok(());
        };
        for beta in [beta1, beta2] {
            require(beta < Micro::ONE, "training.betas", beta, "must be at least 0 and below 1")?;
        }
        require(
            self.momentum == Micro::ZERO,
            "training.momentum",
            self.momentum,
            "must be 0 with Adam, whose beta1 has its place",
        )
    }
}

impl Training {
    pub(crate) const fn example() -> Self {
        Self {
            epochs: 2,
            batch: 16,
            learning_rate: Micro(100_000),
            momentum: Micro::ZERO,
            weight_decay: Micro::ZERO,
            clip_gradient: Micro::ZERO,
            fedprox: Micro::ZERO,
            noise_min: Micro::ZERO,
            optimizer: Optimizer::Sgd,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            augmentation: Augmentation::NONE,
        }
    }
}
