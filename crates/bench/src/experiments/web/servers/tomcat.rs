//! Tomcat 10.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Place;
use crate::machine::program::Program;
use crate::machine::program::found_in_path;

/// Where Debian has it.
const HOME: &str = "/usr/share/tomcat10";
const THREADS: u32 = 200;
/// Its heap, from the start on.
const HEAP: [&str; 3] = ["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"];

/// Files and nothing else.
const WEB: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0" metadata-complete="true">
  <servlet>
    <servlet-name>default</servlet-name>
    <servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class>
    <load-on-startup>1</load-on-startup>
  </servlet>
  <servlet-mapping>
    <servlet-name>default</servlet-name>
    <url-pattern>/</url-pattern>
  </servlet-mapping>
</web-app>
"#;

/// Java, and the jars that start Tomcat.
pub(super) fn programs() -> Result<(PathBuf, OsString)> {
    let java = found_in_path("java")
        .context("Java is not installed (apt-get install default-jre-headless)")?;
    let jars = ["bin/bootstrap.jar", "bin/tomcat-juli.jar"].map(|jar| Path::new(HOME).join(jar));
    for jar in &jars {
        ensure!(
            jar.exists(),
            "Tomcat 10 is not installed: no {} (apt-get install tomcat10-common)",
            jar.display()
        );
    }
    Ok((java, std::env::join_paths(&jars)?))
}

pub(super) fn prepare(place: &Place<'_>) -> Result<Program> {
    let settings = place.folder.join("conf");
    let temporary = place.folder.join("temp");
    for folder in [&settings, &temporary] {
        fs::create_dir(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for (name, text) in [("server.xml", configuration(place)), ("web.xml", WEB.to_owned())] {
        let path = settings.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let (java, jars) = programs()?;
    let mut command = vec![java.into_os_string()];
    // Without UsePerfData Java leaves no file in /tmp.
    command.extend(HEAP.iter().chain(&["-XX:-UsePerfData"]).map(Into::into));
    for (property, folder) in [
        ("catalina.home", Path::new(HOME)),
        ("catalina.base", place.folder),
        ("java.io.tmpdir", &temporary),
    ] {
        let mut argument = OsString::from(format!("-D{property}="));
        argument.push(folder);
        command.push(argument);
    }
    command.extend(["-cp".into(), jars]);
    command.extend(["org.apache.catalina.startup.Bootstrap", "start"].map(Into::into));
    Ok(Program { command, environment: Vec::new() })
}

/// What is cached is not Tomcat's.
fn configuration(place: &Place<'_>) -> String {
    let (socket, site) = (escaped(place.socket), escaped(place.site));
    let connections = place.sessions + 100;
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<Server port="-1">
  <Service name="Catalina">
    <Connector protocol="org.apache.coyote.http11.Http11NioProtocol" unixDomainSocketPath="{socket}"
               maxThreads="{THREADS}" minSpareThreads="{THREADS}"
               maxConnections="{connections}" acceptCount="4096" connectionTimeout="-1"
               keepAliveTimeout="-1" maxKeepAliveRequests="-1" />
    <Engine name="Catalina" defaultHost="localhost">
      <Host name="localhost" appBase="none" autoDeploy="false" deployOnStartup="false">
        <Context path="" docBase="{site}">
          <Resources cachingAllowed="false" />
          <JarScanner scanClassPath="false" />
        </Context>
      </Host>
    </Engine>
  </Service>
</Server>
"#
    )
}

fn escaped(path: &Path) -> String {
    let text = path.display().to_string();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
