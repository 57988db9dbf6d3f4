//! The energy that this machine has used, by its own counters.
//!
//! A counter states joules since it was opened. Packages of processors have counters in Linux's powercap
//! tree (Intel's RAPL, which AMD's processors have in the same place), and NVIDIA's GPUs have one in the
//! management library of their driver. No counter is estimated: a machine without one has no joules.

#[cfg(feature = "torch")]
mod nvml;
mod powercap;

use std::path::Path;

use thiserror::Error;

/// The folder of Linux's counters.
const POWERCAP: &str = "/sys/class/powercap";

/// The names of this machine's GPUs and their bytes of memory, as their driver states them: for display alone.
#[must_use]
pub fn gpus() -> Vec<(String, u64)> {
    #[cfg(feature = "torch")]
    return nvml::gpus();
    #[cfg(not(feature = "torch"))]
    Vec::new()
}

/// A counter of energy.
trait EnergyCounter {
    /// The counter, for people.
    fn name(&self) -> String;
    /// Joules since it was opened.
    fn joules(&mut self) -> Result<f64, EnergyError>;
}

/// The counters of a machine.
pub struct EnergyMeter {
    counters: Vec<Box<dyn EnergyCounter>>,
}

/// The energy of a machine cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnergyError {
    /// There is no counter.
    #[error("no counter is readable: {place} has none")]
    None {
        /// The place without a counter.
        place: String,
    },
    /// A counter is there, and this account may not read it.
    #[error(
        "no counter is readable: {file} is for root alone, as Linux has it since 2020 (CVE-2020-8694): run the \
         measurement as root, or let your account read this file"
    )]
    NoPermission {
        /// The file.
        file: String,
    },
    /// A counter has failed, or has no number.
    #[error("no counter is readable: {place}: {why}")]
    Failed {
        /// The counter.
        place: String,
        /// The reason.
        why: String,
    },
}

impl EnergyMeter {
    /// The counters of this machine: of its processors, and of its first GPU for `engine_name` of an engine
    /// that computes on it.
    ///
    /// # Errors
    /// [`EnergyError`] if none can be read, or not that of the GPU.
    pub fn for_engine(engine_name: &str) -> Result<Self, EnergyError> {
        let processors = Self::from_powercap(Path::new(POWERCAP));
        match engine_name.contains("CUDA") {
            false => processors,
            true => Self::with_gpu(processors),
        }
    }

    /// The counters of processors in a folder like `/sys/class/powercap`.
    ///
    /// # Errors
    /// [`EnergyError`] if there is none, or if one cannot be read.
    pub fn from_powercap(folder: &Path) -> Result<Self, EnergyError> {
        Ok(Self { counters: vec![Box::new(powercap::Packages::open(folder)?)] })
    }

    /// A GPU's counter alone, if the processors have none.
    #[cfg(feature = "torch")]
    fn with_gpu(processors: Result<Self, EnergyError>) -> Result<Self, EnergyError> {
        let mut counters = processors.map_or_else(|_| Vec::new(), |own| own.counters);
        counters.push(Box::new(nvml::Gpu::open()?));
        Ok(Self { counters })
    }

    #[cfg(not(feature = "torch"))]
    fn with_gpu(_: Result<Self, EnergyError>) -> Result<Self, EnergyError> {
        let place = "a build without libtorch".to_owned();
        Err(EnergyError::None { place })
    }

    /// The counters, for people.
    #[must_use]
    pub fn source(&self) -> String {
        let names: Vec<String> = self.counters.iter().map(|counter| counter.name()).collect();
        names.join(" and ")
    }

    /// Joules of all counters since they were opened. Call it more often than a counter wraps, which takes
    /// minutes or longer.
    ///
    /// # Errors
    /// [`EnergyError`] if a counter cannot be read any more.
    pub fn joules(&mut self) -> Result<f64, EnergyError> {
        self.counters.iter_mut().map(|counter| counter.joules()).sum()
    }
}
