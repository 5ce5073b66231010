"""Campaigns of hostile inputs. Each module runs as a program, too; tests run short forms of them."""
