package redisserver

// Refusal returns the commands after which a server refuses what user sends, with a word: the first one of its error. The
// others take that back; then the user has the password again, or none if it is empty. Words that take more than commands have
// none here.
func Refusal(word, user, password string) (begin, end [][]any) {
	switch word {
	case "READONLY": // a replica of nobody: nothing listens at port 1
		return [][]any{{"REPLICAOF", "127.0.0.1", 1}}, [][]any{{"REPLICAOF", "NO", "ONE"}}
	case "MASTERDOWN":
		begin, end = Refusal("READONLY", user, password)
		stale := []any{"CONFIG", "SET", "replica-serve-stale-data"}
		return append([][]any{append(stale[:3:3], "no")}, begin...), append(end, append(stale[:3:3], "yes"))
	case "NOREPLICAS":
		return [][]any{{"CONFIG", "SET", "min-replicas-to-write", 9}}, [][]any{{"CONFIG", "SET", "min-replicas-to-write", 0}}
	case "OOM":
		return [][]any{{"CONFIG", "SET", "maxmemory", 1}}, [][]any{{"CONFIG", "SET", "maxmemory", 0}}
	case "NOAUTH", "WRONGPASS": // what a client hears that has no password, or one
		again := "nopass"
		if password != "" {
			again = ">" + password
		}
		return [][]any{
			{"ACL", "SETUSER", user, "resetpass", ">another one"},
			{"CLIENT", "KILL", "USER", user}, // who is in stays in otherwise
		}, [][]any{{"ACL", "SETUSER", user, "resetpass", again}}
	case "NOPERM":
		return [][]any{{"ACL", "SETUSER", user, "-evalsha", "-eval"}}, [][]any{{"ACL", "SETUSER", user, "+evalsha", "+eval"}}
	}
	return nil, nil
}
