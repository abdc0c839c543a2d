//! Request bodies, serialized before the clock starts so that a prompt of 128,000 tokens does not stall the streams.

use bytes::Bytes;

use super::LoadError;
use super::protocol::Protocol;
use crate::workload::Request;

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) session: u64,
    pub(super) output_len: u32,
    pub(super) body: Bytes,
}

impl Job {
    pub(super) fn new(protocol: &Protocol, session: u64, request: &Request) -> Result<Self, LoadError> {
        let mut body = protocol.body(request)?;
        body.shrink_to_fit();
        Ok(Self { session, output_len: request.output_len, body: body.into() })
    }
}
