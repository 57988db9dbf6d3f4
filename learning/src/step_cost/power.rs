//! The mean watts of a machine while the suite's steps run, and before them.

use std::time::{Duration, Instant};

use super::card::MeasuredPower;
use crate::energy::EnergyMeter;

/// The time in which the idle machine is measured.
const IDLE: Duration = Duration::from_secs(2);

/// A measurement on its way. A counter that fails ends it.
pub(super) struct PowerMeasurement<'m> {
    meter: &'m mut EnergyMeter,
    idle_watts: f64,
    joules: f64,
    seconds: f64,
    has_failed: bool,
}

impl<'m> PowerMeasurement<'m> {
    /// Measures the idle machine; `None` if a counter fails.
    pub(super) fn begin(meter: &'m mut EnergyMeter) -> Option<Self> {
        let mut own = Self { meter, idle_watts: 0.0, joules: 0.0, seconds: 0.0, has_failed: false };
        own.during(|| std::thread::sleep(IDLE));
        let idle_watts = own.watts()?;
        Some(Self { idle_watts, joules: 0.0, seconds: 0.0, ..own })
    }

    /// Runs steps whose joules count.
    pub(super) fn during<T>(&mut self, steps: impl FnOnce() -> T) -> T {
        let (start, before) = (Instant::now(), self.meter.joules());
        let done = steps();
        match (before, self.meter.joules()) {
            (Ok(before), Ok(after)) => {
                self.joules += after - before;
                self.seconds += start.elapsed().as_secs_f64();
            }
            _ => self.has_failed = true,
        }
        done
    }

    /// The power of all steps; `None` after a failure.
    pub(super) fn end(self) -> Option<MeasuredPower> {
        let (training_watts, idle_watts) = (self.watts()?, self.idle_watts);
        Some(MeasuredPower { source: self.meter.source(), idle_watts, training_watts })
    }

    fn watts(&self) -> Option<f64> {
        (!self.has_failed && self.seconds > 0.0).then(|| self.joules / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn idle_and_training_watts_are_apart_and_a_failed_counter_gives_none() {
        let folder = tempfile::tempdir().unwrap();
        let domain = folder.path().join("intel-rapl:0");
        fs::create_dir(&domain).unwrap();
        let set = |name: &str, text: &str| fs::write(domain.join(name), text).unwrap();
        set("name", "package-0");
        set("max_energy_range_uj", "1000000000");
        set("energy_uj", "5");
        let mut meter = EnergyMeter::from_powercap(folder.path()).unwrap();
        let mut power = PowerMeasurement::begin(&mut meter).unwrap();
        assert_eq!(power.idle_watts, 0.0);
        let start = Instant::now();
        power.during(|| set("energy_uj", "3000005"));
        let least = 3.0 / start.elapsed().as_secs_f64();
        let found = power.end().unwrap();
        assert!(found.training_watts >= least && found.source == "RAPL of the processor");
        let mut power = PowerMeasurement::begin(&mut meter).unwrap();
        power.during(|| set("energy_uj", "none"));
        assert_eq!(power.end(), None);
    }

    #[test]
    fn joules_are_watts_times_seconds() {
        let source = "RAPL of the processor".to_owned();
        let power = MeasuredPower { source, idle_watts: 10.0, training_watts: 25.0 };
        let joules = power.joules(4.0);
        assert_eq!((joules.all, joules.beyond_idle), (100.0, 60.0));
        let quiet = MeasuredPower { idle_watts: 30.0, ..power };
        assert_eq!(quiet.joules(4.0).beyond_idle, 0.0);
    }
}
