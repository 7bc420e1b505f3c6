//! Runs the torture program on the plain kernel, where it must pass and must notice damage, and
//! under `ramfold run`.

mod program;
mod sabotage;
mod single;
mod under_ramfold;
mod usage;
mod whole;
