package redistest

// Hold keeps a port from other processes of this machine: what a server does before it starts.
var Hold = hold

// GuardedEnv is the variable that gives the tests a user with few rights.
const GuardedEnv = guardedEnv
