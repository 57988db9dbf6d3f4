//! Lines of a stream of bytes, each of which has a limit.

use super::limits::LINE_BYTES_MAX;

/// A line exceeds [`LINE_BYTES_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineTooLong {
    /// The line, from 1.
    pub(super) line: u64,
}

/// Splits chunks of bytes into lines.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    /// The start of a line of which the end is missing.
    open: Vec<u8>,
    lines: u64,
}

impl LineSplitter {
    /// Calls `each` with the number and the bytes of each line that ends in this chunk, without its
    /// line break.
    ///
    /// # Errors
    /// [`LineTooLong`], before its bytes are in memory, and the errors of `each`.
    pub(super) fn split<E: From<LineTooLong>>(
        &mut self,
        chunk: &[u8],
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end..]);
            self.extend(line)?;
            self.lines = self.lines.saturating_add(1);
            let whole = std::mem::take(&mut self.open);
            each(self.lines, &whole)?;
            self.open = whole;
            self.open.clear();
            rest = after.strip_prefix(b"\n").unwrap_or(after);
        }
        Ok(self.extend(rest)?)
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), LineTooLong> {
        if self.open.len().saturating_add(bytes.len()) > LINE_BYTES_MAX {
            return Err(LineTooLong { line: self.lines.saturating_add(1) });
        }
        self.open.extend_from_slice(bytes);
        Ok(())
    }

    /// The number of the line of which the end is missing, if there is one.
    pub(super) fn unfinished(&self) -> Option<u64> {
        (!self.open.is_empty()).then(|| self.lines.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> (Vec<(u64, String)>, Option<u64>) {
        let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
        for chunk in chunks {
            let each = |number: u64, line: &[u8]| {
                found.push((number, String::from_utf8(line.to_vec()).unwrap()));
                Ok::<_, LineTooLong>(())
            };
            lines.split(chunk, each).unwrap();
        }
        (found, lines.unfinished())
    }

    #[test]
    fn lines_do_not_depend_on_the_chunks() {
        let text = b"t,hot\n1,0\n\n2.5,1\r\n3";
        let expected = (
            vec![(1, "t,hot".into()), (2, "1,0".into()), (3, String::new()), (4, "2.5,1\r".into())],
            Some(5),
        );
        assert_eq!(split(&[text]), expected);
        for cut in 1..text.len() {
            assert_eq!(split(&[&text[..cut], &text[cut..]]), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(&bytes), expected);
        assert_eq!(split(&[b"a\n"]).1, None);
    }

    #[test]
    fn an_endless_line_stops_at_its_limit() {
        let mut lines = LineSplitter::default();
        let chunk = vec![b'7'; 1 << 20];
        let mut send = |chunk: &[u8]| lines.split(chunk, |_, _| Ok::<_, LineTooLong>(()));
        send(b"t,hot\n").unwrap();
        for _ in 0..LINE_BYTES_MAX >> 20 {
            send(&chunk).unwrap();
        }
        assert_eq!(send(&chunk), Err(LineTooLong { line: 2 }));
        assert!(lines.open.len() <= LINE_BYTES_MAX);
    }
}
