package policyfile

import _ "embed"

// Schema is the JSON schema of a policy file, draft 2020-12, for editors. [Parse] finds more: what
// a limit's text may say, and what does not fit together.
//
//go:embed schema.json
var Schema []byte
