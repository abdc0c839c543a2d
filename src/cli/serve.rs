//! `serve`: live pages of the database's studies over HTTP.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use tokio::net::TcpListener;

use super::GlobalOptions;
use super::failure::{CommandFailure, INVALID, USAGE};
use super::output::print;
use super::report::command_names;
use super::signal::watch_signals;
use crate::pages::{AccessRules, is_local, serve};
use crate::store::Store;

/// The variable with the token.
const TOKEN_VARIABLE: &str = "SETPOINT_TOKEN";
/// The shortest accepted token, in characters.
const MIN_TOKEN_CHARS: usize = 16;

#[derive(Debug, Args)]
pub(super) struct ServeCommand {
    /// Port to listen on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8650)]
    port: u16,
    /// Address to listen on. Any other than a loopback address needs a token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    listen: IpAddr,
    /// File with the token that callers must present. The variable `SETPOINT_TOKEN` is the other way. Without both, a
    /// random token is made if the address needs one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Further name that the Host header of a request may have, for instance that of a proxy. Repeatable.
    #[arg(long = "host-name", value_name = "NAME")]
    host_names: Vec<String>,
}

impl ServeCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let wanted = SocketAddr::new(self.listen, self.port);
        let token = self.token(wanted)?;
        let store = Store::open(&global.db, false).await?;
        let listener = TcpListener::bind(wanted).await.map_err(|error| {
            CommandFailure::new(USAGE, format!("cannot listen on {wanted}: {error}"))
                .with_hint("name another port with --port, or 0 for any free one")
        })?;
        let address = listener.local_addr()?;
        let query = token.as_ref().map(|token| format!("?token={token}")).unwrap_or_default();
        print(&format!("http://{address}/{query}"))?;
        let stop = watch_signals(false, |stop| *stop = true)?;
        let rules = AccessRules { token, host_names: self.host_names };
        Ok(serve(listener, store, command_names(global), rules, stop).await?)
    }

    /// Returns the token that callers must present; `None` if none is needed.
    fn token(&self, address: SocketAddr) -> Result<Option<String>, CommandFailure> {
        let given = match &self.token_file {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    CommandFailure::new(INVALID, format!("cannot read the token from {}: {error}", path.display()))
                })?;
                Some((text.trim().to_owned(), path.display().to_string()))
            }
            None => std::env::var(TOKEN_VARIABLE).ok().map(|token| (token, TOKEN_VARIABLE.to_owned())),
        };
        let Some((token, source)) = given else {
            return Ok((!is_local(address)).then(|| format!("{:032x}", rand::random::<u128>())));
        };
        if token.len() < MIN_TOKEN_CHARS
            || !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        {
            let message = format!(
                "the token of {source} has {} characters; it needs at least {MIN_TOKEN_CHARS} letters, digits, `-`, `_` or `.`",
                token.chars().count()
            );
            return Err(CommandFailure::new(USAGE, message).with_hint("`openssl rand -hex 16` prints one"));
        }
        Ok(Some(token))
    }
}
