//! Runs the torture program on the plain kernel: it must pass, and it must notice damage.

mod program;
mod sabotage;
mod single;
mod usage;
mod whole;
