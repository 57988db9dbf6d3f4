//! The memory that the host has free.

use std::fs;

/// Bytes of memory that the process can take: of the machine, or what its control group has left.
/// `None` on other systems than Linux.
pub(super) fn available_bytes() -> Option<u64> {
    let machine =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| free_of_machine(&text))?;
    let group = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let left = group("memory.max").zip(group("memory.current"));
    let held = group("memory.stat").unwrap_or_default();
    let left = left.and_then(|(most, current)| left_of_group(&most, &current, &held));
    Some(machine.min(left.unwrap_or(u64::MAX)))
}

/// `MemAvailable` of `/proc/meminfo`.
fn free_of_machine(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1_024)
}

/// A control group's limit without the memory that it uses; `None` if it has no limit. Pages of
/// files, which `memory.stat` counts, are free: the system takes them back on demand.
fn left_of_group(most: &str, current: &str, stat: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let files = stat.lines().filter_map(|line| {
        line.strip_prefix("active_file ").or(line.strip_prefix("inactive_file ")).and_then(number)
    });
    let used = number(current)?.saturating_sub(files.sum());
    Some(number(most)?.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_from_the_files_of_linux() {
        let text = "MemTotal:       100 kB\nMemAvailable:   64 kB\n";
        assert_eq!(free_of_machine(text), Some(65_536));
        assert_eq!(free_of_machine("MemTotal: 5 kB"), None);
        assert_eq!(left_of_group("100\n", "30\n", ""), Some(70));
        assert_eq!(left_of_group("30", "100", ""), Some(0));
        assert_eq!(left_of_group("max\n", "30", ""), None);
        let stat = "anon 5\ninactive_file 40\nactive_file 50\nfile_dirty 3\n";
        assert_eq!(left_of_group("100\n", "99\n", stat), Some(91));
    }
}
