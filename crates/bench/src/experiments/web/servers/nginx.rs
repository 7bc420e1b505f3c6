//! nginx.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Place;
use crate::machine::program::Program;
use crate::machine::program::found_in_path;
use crate::machine::program::is_executable;

/// Where Debian installs it, which is not in every user's PATH.
const USUAL: &str = "/usr/sbin/nginx";
/// Descriptors of a worker for anything but sessions.
const DESCRIPTORS_MORE: usize = 100;

pub(super) fn program() -> Result<PathBuf> {
    found_in_path("nginx")
        .or_else(|| Some(PathBuf::from(USUAL)).filter(|path| is_executable(path)))
        .context("nginx is not installed (apt-get install nginx)")
}

pub(super) fn prepare(place: &Place<'_>) -> Result<Program> {
    let path = place.folder.join("nginx.conf");
    fs::write(&path, configuration(place))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = vec![program()?.into_os_string()];
    command.extend(["-e", "stderr", "-p"].map(Into::into));
    command.extend([place.folder.into(), "-c".into(), path.into_os_string()]);
    Ok(Program { command, environment: Vec::new() })
}

/// Paths without a folder are below `place.folder`. As root, since the folder is root's alone.
fn configuration(place: &Place<'_>) -> String {
    let (socket, site) = (place.socket.display(), place.site.display());
    // One worker may get all connections, each with a file.
    let connections = place.sessions + DESCRIPTORS_MORE;
    let descriptors = 2 * place.sessions + DESCRIPTORS_MORE;
    // By one in each round of its loop, in which it serves all the others, some would wait for a
    // minute.
    format!(
        r#"daemon off;
user root;
worker_processes 2;
worker_rlimit_nofile {descriptors};
pid pid;
error_log stderr error;
events {{
    worker_connections {connections};
    multi_accept on;
}}
http {{
    access_log off;
    sendfile on;
    keepalive_timeout 1d;
    keepalive_requests 1000000000;
    default_type application/octet-stream;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen "unix:{socket}" backlog=4096;
        root "{site}";
    }}
}}
"#
    )
}
