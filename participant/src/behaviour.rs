//! A participant's behaviour in a round: honest training, or an experiment.
//!
//! The market must withstand participants that do not do the work. Demonstrations and tests use the
//! behaviours below to show that it does. Every behaviour except the honest one is marked as an
//! experiment, and the agent emits an event when it runs one.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use florin_learning::Dataset;
use florin_learning::data::DatasetError;
use florin_learning::engine::TrainError;

/// Trains as the task prescribes, from the round's base model, and returns the difference.
pub type Train<'a> = dyn FnMut() -> Result<Vec<f32>, TrainError> + 'a;

/// Produces a participant's update from its data.
pub trait Behaviour: Send {
    /// Its name: `honest`, `noise`, `flipped`, `idle`.
    fn name(&self) -> &'static str;

    /// True for every behaviour but the honest one.
    fn is_experiment(&self) -> bool {
        true
    }

    /// The rows that it trains on.
    ///
    /// # Errors
    /// [`DatasetError`] if its rows do not form a data set.
    fn data<'a>(&self, own: &'a Dataset) -> Result<Cow<'a, Dataset>, DatasetError> {
        Ok(Cow::Borrowed(own))
    }

    /// The update that it submits, of `parameters` numbers; the agent clips it to the task's norm
    /// limit afterwards. `seed` is the round's seed, so the same run gives the same bytes.
    ///
    /// # Errors
    /// [`TrainError`] from `train`.
    fn delta(
        &mut self,
        parameters: usize,
        seed: u64,
        train: &mut Train<'_>,
    ) -> Result<Vec<f32>, TrainError>;
}

/// A behaviour by name. `FromStr` parses the output of `Display`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BehaviourKind {
    /// Trains on its own rows and submits the result.
    #[default]
    Honest,
    /// Submits a random direction with the norm of an honest update.
    Noise,
    /// Trains on rows with random wrong labels.
    Flipped,
    /// Submits the model unchanged.
    Idle,
}

/// An unknown name of a behaviour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown behaviour {0:?}: use honest, noise, flipped or idle")]
pub struct BehaviourNameError(String);

impl BehaviourKind {
    /// All behaviours.
    pub const ALL: [Self; 4] = [Self::Honest, Self::Noise, Self::Flipped, Self::Idle];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Honest => "honest",
            Self::Noise => "noise",
            Self::Flipped => "flipped",
            Self::Idle => "idle",
        }
    }

    /// The implementation of the behaviour.
    #[must_use]
    pub fn behaviour(self) -> Box<dyn Behaviour> {
        match self {
            Self::Honest => Box::new(Honest),
            Self::Noise => Box::new(Noise),
            Self::Flipped => Box::new(Flipped),
            Self::Idle => Box::new(Idle),
        }
    }
}

impl fmt::Display for BehaviourKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for BehaviourKind {
    type Err = BehaviourNameError;
    fn from_str(text: &str) -> Result<Self, BehaviourNameError> {
        let named = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        named.ok_or_else(|| BehaviourNameError(text.chars().take(40).collect()))
    }
}

/// Trains on its own rows and submits the result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Honest;

/// Submits a random direction with the norm of an honest update.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noise;

/// Trains on rows with random wrong labels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flipped;

/// Submits the model unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle;

impl Behaviour for Honest {
    fn name(&self) -> &'static str {
        BehaviourKind::Honest.as_str()
    }

    fn is_experiment(&self) -> bool {
        false
    }

    fn delta(
        &mut self,
        _parameters: usize,
        _seed: u64,
        train: &mut Train<'_>,
    ) -> Result<Vec<f32>, TrainError> {
        train()
    }
}

impl Behaviour for Noise {
    fn name(&self) -> &'static str {
        BehaviourKind::Noise.as_str()
    }

    fn delta(
        &mut self,
        parameters: usize,
        seed: u64,
        train: &mut Train<'_>,
    ) -> Result<Vec<f32>, TrainError> {
        // Only training gives the norm of an honest update.
        let length = florin_learning::params::norm(&train()?);
        let mut noise = noise(parameters, seed);
        let factor = match florin_learning::params::norm(&noise) {
            norm if norm > 0.0 => length / norm,
            _ => 0.0,
        };
        for value in &mut noise {
            *value = (f64::from(*value) * factor) as f32;
        }
        Ok(noise)
    }
}

/// Numbers uniform in −1 to 1, from the BLAKE3 output stream of the seed.
fn noise(parameters: usize, seed: u64) -> Vec<f32> {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 experiment noise");
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; parameters * 4];
    hasher.finalize_xof().fill(&mut bytes);
    let (numbers, _) = bytes.as_chunks::<4>();
    let even = |bytes: &[u8; 4]| f64::from(i32::from_le_bytes(*bytes)) / f64::from(i32::MAX);
    numbers.iter().map(|bytes| even(bytes) as f32).collect()
}

impl Behaviour for Flipped {
    fn name(&self) -> &'static str {
        BehaviourKind::Flipped.as_str()
    }

    fn data<'a>(&self, own: &'a Dataset) -> Result<Cow<'a, Dataset>, DatasetError> {
        // A fixed permutation of labels does not work: two digits may look alike, and then it
        // helps.
        let others = u32::try_from(own.classes()).unwrap_or(u32::MAX).saturating_sub(1).max(1);
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 experiment labels");
        own.labels().iter().for_each(|label| {
            hasher.update(&label.to_le_bytes());
        });
        let mut bytes = vec![0; own.rows() * 4];
        hasher.finalize_xof().fill(&mut bytes);
        let (draws, _) = bytes.as_chunks::<4>();
        let labels =
            own.labels().iter().zip(draws).map(|(label, draw)| {
                (label + 1 + u32::from_le_bytes(*draw) % others) % (others + 1)
            });
        own.with_labels(labels.collect()).map(Cow::Owned)
    }

    fn delta(
        &mut self,
        _parameters: usize,
        _seed: u64,
        train: &mut Train<'_>,
    ) -> Result<Vec<f32>, TrainError> {
        train()
    }
}

impl Behaviour for Idle {
    fn name(&self) -> &'static str {
        BehaviourKind::Idle.as_str()
    }

    fn delta(
        &mut self,
        parameters: usize,
        _seed: u64,
        _train: &mut Train<'_>,
    ) -> Result<Vec<f32>, TrainError> {
        Ok(vec![0.0; parameters])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained() -> Vec<f32> {
        vec![3.0, 0.0, 4.0, 0.0]
    }

    #[test]
    fn every_behaviour_but_honest_is_an_experiment() {
        for kind in BehaviourKind::ALL {
            let behaviour = kind.behaviour();
            assert_eq!(behaviour.name().parse(), Ok(kind));
            assert_eq!(behaviour.is_experiment(), kind != BehaviourKind::Honest);
        }
        assert_eq!(BehaviourKind::default(), BehaviourKind::Honest);
        assert!("lazy".parse::<BehaviourKind>().is_err());
    }

    #[test]
    fn noise_has_the_honest_norm_and_is_deterministic() {
        let mut train = || Ok(trained());
        let noise = Noise.delta(4, 7, &mut train).unwrap();
        assert!((florin_learning::params::norm(&noise) - 5.0).abs() < 1e-5);
        assert_eq!(noise, Noise.delta(4, 7, &mut train).unwrap());
        assert_ne!(noise, Noise.delta(4, 8, &mut train).unwrap());
        assert!(super::noise(10_000, 3).iter().map(|v| f64::from(*v)).sum::<f64>().abs() < 300.0);
    }

    #[test]
    fn flipped_changes_every_label_and_no_feature() {
        let labels: Vec<u32> = (0..200).map(|row| row % 5).collect();
        let own = Dataset::new(vec![1.0; 200], labels, 1, 5).unwrap();
        let flipped = Flipped.data(&own).unwrap();
        assert!(flipped.labels().iter().zip(own.labels()).all(|(a, b)| a != b && *a < 5));
        assert!(flipped.class_counts().iter().all(|count| *count > 20), "each label is drawn");
        assert_eq!(flipped.features(), own.features());
        assert_eq!(*Flipped.data(&own).unwrap(), *flipped, "the same each time");
        assert_eq!(*Honest.data(&own).unwrap(), own);
    }

    #[test]
    fn idle_does_not_train() {
        let mut train = || panic!("idle must not train");
        assert_eq!(Idle.delta(3, 1, &mut train).unwrap(), [0.0; 3]);
    }
}
