//! Recorded traffic: the lengths and times of real requests, and the blocks of tokens that they shared.

mod read;
mod table;

use std::path::Path;
use std::time::Duration;

use super::draw::DrawPurpose;
use super::writer::{TextPiece, TextWriter};
use super::{LeftOut, UserSession, Workload, WorkloadError};

/// Tokens of the block that one hash of a Mooncake trace stands for (<https://github.com/kvcache-ai/Mooncake>,
/// `FAST25-release/traces`: "each block contains 512 tokens").
const BLOCK: u32 = 512;

/// One recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// Arrival, counted from the origin of the trace's own clock. `None` without time stamps.
    at: Option<Duration>,
    input: u32,
    output: u32,
    /// The hashes of the prompt's blocks. Empty if the trace has none.
    blocks: Vec<u64>,
}

/// Random tokens of the recorded lengths. Blocks of equal hash are equal tokens. All other tokens are the session's
/// own, also after the trace has started over.
#[derive(Debug)]
pub(super) struct TraceWorkload {
    writer: TextWriter,
    /// At least one, ordered by `at`.
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

impl TraceWorkload {
    /// Reads a trace. Rows that the model cannot hold, and rows without input or output tokens, are left out.
    pub(super) fn read(file: &Path, writer: TextWriter, max_model_len: Option<u64>) -> Result<Self, WorkloadError> {
        let mut rows = read::read(file)?;
        let all = rows.len();
        rows.retain(|row| row.input > 0 && row.output > 0);
        let empty = all - rows.len();
        let limit = max_model_len.unwrap_or(u64::MAX);
        rows.retain(|row| u64::from(row.input) + u64::from(row.output) <= limit);
        let too_long = all - empty - rows.len();
        let reasons = [
            ("without input or output tokens".to_owned(), empty),
            (format!("longer than the limit of the model (max_model_len {limit})"), too_long),
        ];
        let left_out = reasons.into_iter().filter(|(_, rows)| *rows > 0);
        let left_out = left_out.map(|(reason, rows)| LeftOut { reason, rows: rows as u64 }).collect();
        if rows.is_empty() {
            return Err(WorkloadError::Empty { file: file.to_owned(), left_out });
        }
        rows.sort_by_key(|row| row.at);
        if let Some(shortest) = rows.iter().map(|row| row.input).min() {
            writer.check(shortest)?;
        }
        Ok(Self { writer, rows, left_out })
    }

    fn row(&self, index: u64) -> &Row {
        &self.rows[usize::try_from(index % self.rows.len() as u64).unwrap_or(0)]
    }
}

impl Workload for TraceWorkload {
    fn session(&self, index: u64) -> UserSession {
        let row = self.row(index);
        let mut rest = row.input;
        let mut pieces = Vec::with_capacity(row.blocks.len() + 1);
        for block in &row.blocks {
            let len = rest.min(BLOCK);
            pieces.push(TextPiece::new(DrawPurpose::Block, *block, len));
            rest -= len;
        }
        if rest > 0 {
            pieces.push(TextPiece::new(DrawPurpose::Prompt, index, rest));
        }
        UserSession::single(self.writer.prompt(pieces), row.output)
    }

    /// Returns a session of the row's lengths without its blocks. Other rows have these blocks too, and so does the row
    /// itself when the trace starts over.
    fn warmup_session(&self, index: u64) -> UserSession {
        let row = self.row(index);
        UserSession::single(self.writer.prompt([TextPiece::new(DrawPurpose::Prompt, index, row.input)]), row.output)
    }

    fn longest(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.input) + u64::from(row.output)).max().unwrap_or(0)
    }

    fn len(&self) -> Option<u64> {
        Some(self.rows.len() as u64)
    }

    fn due(&self, index: u64) -> Option<Duration> {
        let (first, last) = (self.rows.first()?.at?, self.rows.last()?.at?);
        let round = u32::try_from(index / self.rows.len() as u64).unwrap_or(u32::MAX);
        // After its end the trace starts over with one mean gap between.
        let gaps = u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX).max(1);
        let span = last.saturating_sub(first);
        Some(self.row(index).at?.saturating_sub(first).saturating_add((span + span / gaps).saturating_mul(round)))
    }

    fn left_out(&self) -> Vec<LeftOut> {
        self.left_out.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::{temporary, tokens};

    fn trace(text: &str) -> Result<TraceWorkload, WorkloadError> {
        let file = temporary(text);
        TraceWorkload::read(file.path(), TextWriter::of_ids(1, 4096), Some(10_000))
    }

    #[test]
    fn the_layouts_of_known_traces_are_read() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        for (text, dues) in [
            (
                "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n\
                 2023-11-16 18:17:08.2799600,396,109\n",
                [Some(ms(0)), Some(ms(4300))],
            ),
            ("arrival_s,input_tokens,output_tokens\n0.5,374,44\n4.75,396,109\n", [Some(ms(0)), Some(ms(4250))]),
            (
                "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5,ChatGPT,374,44,418,Conversation log\n9,GPT-4,9,0,9,API log\n45,ChatGPT,396,109,505,API log\n",
                [Some(s(0)), Some(s(40))],
            ),
            ("input_length,output_length\n374,44\n396,109\n", [None, None]),
            (
                "{\"timestamp\": 27482, \"input_length\": 374, \"output_length\": 44, \"hash_ids\": [46]}\n\
                 {\"timestamp\": 30535, \"input_length\": 396, \"output_length\": 109, \"hash_ids\": [46]}\n",
                [Some(ms(0)), Some(ms(3053))],
            ),
        ] {
            let trace = trace(text).unwrap();
            assert_eq!(trace.len(), Some(2), "{text}");
            assert_eq!([trace.due(0), trace.due(1)], dues, "{text}");
            assert_eq!((tokens(&trace, 0).len(), tokens(&trace, 1).len()), (374, 396));
            assert_eq!(trace.session(1).turns[0].request.output_len, 109);
            assert_eq!(trace.longest(), 505);
            // It starts over, with other tokens if none are shared.
            assert_eq!(tokens(&trace, 2).len(), 374);
            if text.contains("Model") {
                assert_eq!(
                    trace.left_out(),
                    [LeftOut { reason: "without input or output tokens".to_owned(), rows: 1 }]
                );
                assert_eq!(trace.due(2), Some(s(80)));
            }
        }
    }

    #[test]
    fn blocks_of_equal_hash_are_equal_tokens_and_nothing_else_is() {
        let line = |at: u32, input: u32, blocks: &str| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": {input}, \"output_length\": 5, \"hash_ids\": [{blocks}]}}\n"
            )
        };
        let text = [line(0, 1300, "7, 8, 9"), line(1, 1400, "7, 8, 10"), line(2, 700, "8, 11")].concat();
        let trace = trace(&text).unwrap();
        let all = [tokens(&trace, 0), tokens(&trace, 1), tokens(&trace, 2)];
        assert_eq!(all.each_ref().map(Vec::len), [1300, 1400, 700]);
        assert_eq!(all[0][..1024], all[1][..1024]);
        assert_ne!(all[0][1024..1030], all[1][1024..1030]);
        assert_eq!(all[0][512..1024], all[2][..512]);
    }

    #[test]
    fn requests_that_the_model_cannot_hold_are_counted() {
        let kept = trace("input_length,output_length\n9000,1000\n9001,1000\n").unwrap();
        assert_eq!(
            kept.left_out(),
            [LeftOut { reason: "longer than the limit of the model (max_model_len 10000)".to_owned(), rows: 1 }]
        );
        let error = trace("input_length,output_length\n9001,1000\n").unwrap_err().to_string();
        assert!(
            error.ends_with("contains no usable request; 1 longer than the limit of the model (max_model_len 10000)"),
            "{error}"
        );
    }

    #[test]
    fn an_unreadable_row_is_reported_with_its_line_field_and_value() {
        let json = "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1";
        for (text, problem) in [
            ("a,b\n1,2\n", ":1: the columns a, b match no known trace; rename them to one of these sets: "),
            ("input_length,output_length\n1,2\n1,x\n", ":3: output_length: \"x\" is not a number of tokens"),
            ("arrival_s,input_tokens,output_tokens\nsoon,1,2\n", ":2: arrival_s: \"soon\" is not a time"),
            ("input_length,output_length\n1\n", ":2: "),
            (&format!("{json}}}\n{json}, \"hash_ids\": [1, 2, 3]}}\n"), ":2: hash_ids: 3 blocks, but 600 tokens"),
            (&format!("{json}}}\n\n{{\"input_length\": 600, \"output_length\": 1}}\n"), ":3: timestamp: is missing"),
            (&format!("{json}}}\n{{\"timestamp\": 2}}\n"), ":2: missing field `input_length`"),
            (&format!("{json}}}\n{json}"), ":2: EOF"),
            ("", ":1: the columns  match no known trace"),
        ] {
            let error = trace(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}\n{problem}");
        }
    }
}
