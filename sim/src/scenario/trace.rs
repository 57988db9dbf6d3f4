//! Availability traces: a CSV file with the header `member,from_s,until_s` and one line for each
//! interval in which a member was online, in seconds from the beginning of the trace.
//!
//! Members are numbered from 0 without gaps; the lines of a member are in chronological order and
//! do not overlap. The trace repeats after its last line. If a group has more members than the
//! trace, its lines are reused; each reuse is shifted by 0.618 of the trace's length, so that no
//! two members have the same intervals.

use std::path::Path;

/// Maximum size of a trace file in bytes.
const TRACE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of lines of a trace.
const TRACE_LINES_MAX: usize = 1_000_000;
/// Maximum length of a trace in seconds: a hundred years.
const SECONDS_MAX: f64 = 3.2e9;
/// The required header.
const HEADER: [&str; 3] = ["member", "from_s", "until_s"];
/// Shift between members that reuse the same lines, as a fraction of the trace's length: the
/// fractional part of the golden ratio.
const SHIFT_FRACTION: f64 = 0.618_033_988_749_894_9;

/// A trace: for each member the intervals in which it was online, ascending, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct AvailabilityTrace {
    members: Vec<Vec<[f64; 2]>>,
    /// Length after which the trace repeats.
    length: f64,
    /// The content of the file, which is stored beside the results.
    pub(super) text: String,
}

/// Why a file is not a valid trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{place}: {why} [SCENARIO_TRACE]")]
pub struct TraceError {
    file: String,
    place: String,
    why: String,
}

impl AvailabilityTrace {
    /// Parses a trace.
    ///
    /// # Errors
    /// [`TraceError`] with the line number.
    pub fn parse(file: &str, text: String) -> Result<Self, TraceError> {
        let wrong = |line: Option<u64>, why: String| TraceError {
            file: file.to_owned(),
            place: line.map(|line| format!(", line {line}")).unwrap_or_default(),
            why,
        };
        let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| wrong(Some(1), error.to_string()))?;
        if header.iter().ne(HEADER) {
            return Err(wrong(Some(1), format!("must be the header {}", HEADER.join(","))));
        }
        let mut members: Vec<Vec<[f64; 2]>> = Vec::new();
        for (at, record) in reader.records().enumerate() {
            let record = record.map_err(|error| wrong(None, error.to_string()))?;
            let line = record.position().map(csv::Position::line);
            if at >= TRACE_LINES_MAX {
                return Err(wrong(line, format!("a trace has at most {TRACE_LINES_MAX} lines")));
            }
            let (member, times) = parse_interval(&record).map_err(|why| wrong(line, why))?;
            push_interval(&mut members, member, times).map_err(|why| wrong(line, why))?;
        }
        let last = members.iter().filter_map(|times| times.last());
        let length = last.fold(0.0, |length: f64, times| length.max(times[1]));
        if members.is_empty() {
            return Err(wrong(
                None,
                "no member is ever online: write at least one line".to_owned(),
            ));
        }
        Ok(Self { members, length, text })
    }

    /// Whether the member at index `place` of its group is online `seconds` after the beginning.
    #[must_use]
    pub fn is_online(&self, place: usize, seconds: f64) -> bool {
        let (lap, member) = (place / self.members.len(), place % self.members.len());
        let at = (seconds + lap as f64 * SHIFT_FRACTION * self.length) % self.length;
        let times = &self.members[member];
        let after = times.partition_point(|[from, _]| *from <= at);
        after > 0 && at < times[after - 1][1]
    }
}

/// Parses the member and the interval of a line.
fn parse_interval(record: &csv::StringRecord) -> Result<(usize, [f64; 2]), String> {
    let field = |at: usize| record.get(at).unwrap_or_default();
    let member = field(0);
    let wrong = |what: &str, is: &str, right: &str| format!("{what} is {is:?}: {right}");
    let member: usize =
        member.parse().map_err(|_| wrong("member", member, "write a whole number from 0"))?;
    let seconds = |at: usize| {
        let right = "write seconds from 0 to 3200000000";
        let value: Option<f64> = field(at).parse().ok();
        let fine = value.filter(|value| (0.0..=SECONDS_MAX).contains(value));
        fine.ok_or_else(|| wrong(HEADER[at], field(at), right))
    };
    let times = [seconds(1)?, seconds(2)?];
    if times[0] >= times[1] {
        return Err(wrong("until_s", field(2), "must be after from_s"));
    }
    Ok((member, times))
}

/// Appends an interval to those of a member.
fn push_interval(
    members: &mut Vec<Vec<[f64; 2]>>,
    member: usize,
    times: [f64; 2],
) -> Result<(), String> {
    if member > members.len() {
        return Err(format!("member is {member}: the next new member is {}", members.len()));
    }
    if member == members.len() {
        members.push(Vec::new());
    }
    if let Some(before) = members[member].last().filter(|before| before[1] > times[0]) {
        return Err(format!(
            "from_s is {}: member {member} is online until {} already",
            times[0], before[1]
        ));
    }
    members[member].push(times);
    Ok(())
}

pub(super) fn read(path: &Path) -> Result<AvailabilityTrace, TraceError> {
    let file = path.display().to_string();
    let wrong = |why: String| TraceError { file: file.clone(), place: String::new(), why };
    let found = std::fs::metadata(path);
    let bytes = found.map_err(|error| wrong(format!("{error}; name a file that can be read")))?;
    if bytes.len() > TRACE_BYTES_MAX {
        return Err(wrong(format!("{} bytes: at most {TRACE_BYTES_MAX}", bytes.len())));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    AvailabilityTrace::parse(&file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(lines: &str) -> Result<AvailabilityTrace, TraceError> {
        AvailabilityTrace::parse("t.csv", format!("member,from_s,until_s\n{lines}"))
    }

    #[test]
    fn a_trace_defines_online_intervals_and_repeats() {
        let trace = trace("0,0,10\n1,5,20\n0,30,40\n").unwrap();
        let there = |place, at| trace.is_online(place, at);
        assert_eq!(
            [0.0, 9.9, 10.0, 29.9, 30.0, 39.9].map(|at| there(0, at)),
            [true, true, false, false, true, true]
        );
        assert_eq!([4.9, 5.0, 19.9, 20.0].map(|at| there(1, at)), [false, true, true, false]);
        assert!(there(0, 40.0 + 9.0), "the trace repeats after 40 seconds");
        // The third member has the first one's lines, shifted by 24.7 seconds.
        assert_eq!([0.0, 5.0, 6.0, 15.2].map(|at| there(2, at)), [false, false, true, true]);
    }

    #[test]
    fn an_invalid_trace_is_refused_with_the_line_number() {
        for (lines, expected) in [
            ("", "no member is ever online"),
            ("0,0", "fields"),
            ("0,0,1\n2,0,1", "line 3: member is 2: the next new member is 1"),
            ("x,0,1", "line 2: member is \"x\""),
            ("0,-1,1", "from_s is \"-1\""),
            ("0,NaN,1", "from_s is \"NaN\""),
            ("0,1,1", "must be after from_s"),
            ("0,0,5\n0,4,9", "line 3: from_s is 4: member 0 is online until 5 already"),
            ("0,0,4e9", "until_s is \"4e9\""),
        ] {
            let message = trace(lines).unwrap_err().to_string();
            assert!(
                message.contains(expected) && message.ends_with("[SCENARIO_TRACE]"),
                "{lines}: {message}"
            );
        }
        assert!(AvailabilityTrace::parse("t.csv", "member,from\n".to_owned()).is_err());
    }
}
