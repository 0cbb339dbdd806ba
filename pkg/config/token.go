package config

import (
	"os"
	"strings"
)

// ReadToken is the join token: token, or what token-file holds, or "" when neither is set. The error is a *Problem
// with the place, except for a file that this user may not read.
func (c *Config) ReadToken() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	at := c.Origins("token-file")[0]
	data, err := os.ReadFile(c.TokenFile)
	if os.IsPermission(err) {
		return "", err
	}
	if err != nil {
		return "", place(complain("correct the path, or write the token into it", "the file cannot be read: %s", plainError(err)), at, "token-file")
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", place(complain("write the token into it, or remove the key to have one made", "the file %s is empty", c.TokenFile), at, "token-file")
	}
	secret, err := token(text)
	if err != nil {
		return "", place(err, at, "token-file")
	}
	return secret, nil
}
